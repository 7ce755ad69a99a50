-- Judge submitted items whose id belongs to a trimmed execution that still has events. The verdict
-- is duplicate if the trimmed execution is of the same namespace, otherwise invalid. Items with
-- other ids and items in p_skip get no verdict.
drop function if exists ff._judge_trimmed;
create function ff._judge_trimmed(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[],
  p_skip          integer[]
)
returns ff.verdict[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  return array(
    select row(u.n, u.id, case when o.namespace = p_namespace then 'duplicate' else 'invalid' end,
               null, null,
               case when o.namespace <> p_namespace then jsonb_build_object(
                 'field', 'execution_id', 'problem', 'is taken: make a new one') end)::ff.verdict
    from unnest(p_execution_ids) with ordinality u(id, n)
    cross join lateral (
      select v.namespace from ff.event v
      where v.partition_key = p_partition_key and v.execution_id = u.id
      limit 1) o
    where not exists (
        select from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id)
      and u.n <> all (p_skip)
    offset 0);
end;
$$;
