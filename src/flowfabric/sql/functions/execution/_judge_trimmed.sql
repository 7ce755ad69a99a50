-- Judge submit items whose executions were trimmed while their events are kept: duplicate, or taken
-- by another namespace. Adds its verdicts to p_refused. An item that p_refused rejects is left as
-- it is, unless only for a closed lane.
drop function if exists ff._judge_trimmed;
create function ff._judge_trimmed(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[],
  p_refused       ff.verdict[]
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
declare
  v_gone ff.verdict[];
begin
  v_gone := array(
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
      and not exists (
        select from unnest(p_refused) r where r.item = u.n and r.word <> 'lane_closed')
    offset 0);
  return v_gone || array(
    select r from unnest(p_refused) r
    where not exists (select from unnest(v_gone) g where g.item = r.item));
end;
$$;
