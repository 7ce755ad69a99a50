-- Check that the parents of new executions exist. The verdict on an execution is parent_ended if
-- its parent does not exist in this namespace, for example because the parent was trimmed. The
-- parent must have been stored by an earlier call. ff._bind_to_parents checks whether a parent has
-- ended.
drop function if exists ff._judge_parents;
create function ff._judge_parents(
  p_partition_key smallint,
  p_namespace     text,
  p_skip          integer[],
  p_execution_ids uuid[],
  p_options       jsonb[]
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
    from (select i.id, (i.o ->> 'parent_id')::uuid as parent_id, i.n
          from unnest(p_execution_ids, p_options) with ordinality i(id, o, n)
          where i.n <> all (p_skip) and i.o ->> 'parent_id' is not null
          offset 0) u
    where not exists (
        select from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.parent_id
          and case when e.namespace = p_namespace then true else false end)
  ), '{}');
end;
$$;
