-- Judge children by their parents: parent_ended if the parent does not exist or is of another
-- namespace. An item of the same call does not exist yet.
drop function if exists ff._judge_parents;
create function ff._judge_parents(
  p_partition_key smallint,
  p_namespace     text,
  p_skip          integer[],
  p_execution_ids uuid[],
  p_parent_ids    uuid[]
)
returns ff.verdict[]
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  return coalesce((
    select array_agg(row(
             u.n, u.id, 'parent_ended', null, null, jsonb_build_object(
               'parent_id', format('{fp:%s}:%s', p_partition_key, u.parent_id)))::ff.verdict)
    from unnest(p_execution_ids, p_parent_ids) with ordinality u(id, parent_id, n)
    where u.parent_id is not null and u.n <> all (p_skip)
      and not exists (
        select from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.parent_id
          and case when e.namespace = p_namespace then true else false end)
  ), '{}');
end;
$$;
