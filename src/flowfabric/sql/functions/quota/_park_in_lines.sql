-- Put executions into the lines of the gates that refused them (T6, quiet). The caller has locked
-- the executions and the gates of quotas. Neither the caller nor this function locks budgets.
--
-- An execution that waits to be reclaimed stays active. Claims skip it while its line is closed.
drop function if exists ff._park_in_lines;
create function ff._park_in_lines(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_gate_ids      bigint[],
  p_now           timestamptz
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_routes bigint[];
  v_gates  bigint[];
begin
  if p_execution_ids = '{}' then
    return;
  end if;
  with parked as (
    update ff.execution e set
      eligibility = case when e.phase = 'runnable' then t.eligibility else e.eligibility end,
      blocking_reason = case when t.gate_id < 4611686018427387904
                          then 'waiting_for_quota'::ff.blocking_reason
                          else 'waiting_for_budget' end,
      line_id = t.gate_id,
      -- Count refusals only under several quotas. Under one quota the execution can only wait.
      refusal_count = case when cardinality(e.quota_ids) > 1
                        then least(coalesce(e.refusal_count, 0) + 1, 100) end,
      blocked_at = greatest(p_now, e.transitioned_at),
      -- Moving an execution to another line of the same kind is not a transition.
      cause = case when e.phase = 'runnable' and e.eligibility <> t.eligibility
                then 'block' else e.cause end,
      transitioned_at = case when e.phase = 'runnable' and e.eligibility <> t.eligibility
                          then greatest(p_now, e.transitioned_at) else e.transitioned_at end,
      mutated_at = greatest(p_now, e.mutated_at)
    from (
      select p_partition_key as pk, u.id, u.gate_id,
             case when u.gate_id < 4611686018427387904 then 'blocked_by_quota'::ff.eligibility
                  else 'blocked_by_budget' end as eligibility
      from unnest(p_execution_ids, p_gate_ids) u(id, gate_id)
      offset 0) t
    where e.partition_key = t.pk and e.execution_id = t.id
    returning e.route_id, e.line_id
  )
  select array_agg(d.route_id), array_agg(d.line_id) into v_routes, v_gates
  from (select distinct p.route_id, p.line_id from parked p) d;
  -- The update protects the line of a budget: no other transaction removes a line that this one has
  -- updated.
  insert into ff.line as y (partition_key, route_id, gate_id, is_open, served_at)
  select p_partition_key, u.route_id, u.gate_id, false, p_now
  from unnest(v_routes, v_gates) u(route_id, gate_id)
  order by u.route_id, u.gate_id
  on conflict (partition_key, route_id, gate_id) do update
    set served_at = excluded.served_at
    where y.gate_id >= 4611686018427387904;
end;
$$;
