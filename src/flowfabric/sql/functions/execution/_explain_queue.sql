-- Explain how many executions are ahead of an eligible execution in its lane. The call counts the
-- executions of all tasks. It reads at most 200 routes and 1 001 executions.
drop function if exists ff._explain_queue;
create function ff._explain_queue(
  p_partition_key smallint,
  p_row           ff.execution,
  p_route         ff.route,
  p_able          bigint
)
returns table (dimension text, code text, evidence jsonb, changes_at timestamptz)
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_routes bigint[];
  v_ahead  bigint;
begin
  v_routes := array(
    select r.route_id from ff.route r
    where r.namespace = p_route.namespace and r.lane = p_route.lane
    order by r.route_id <> p_row.route_id
    limit 201);
  select count(*) into v_ahead
  from (
    select from unnest(v_routes[1:200]) r(route_id)
    cross join lateral (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.route_id = r.route_id
        and e.phase = 'runnable' and e.eligibility = 'eligible_now'
        and (e.rank, e.order_at, e.execution_id)
          < (p_row.rank, p_row.order_at, p_row.execution_id)
      limit 1001) e
    limit 1001) a;
  return query select 'queue', 'in_line',
    jsonb_strip_nulls(jsonb_build_object(
      'lane', p_route.lane, 'task', p_route.task, 'ahead', least(v_ahead, 1000),
      'is_more', v_ahead > 1000 or cardinality(v_routes) > 200,
      'able_workers', least(p_able, 100), 'are_more_able', p_able > 100,
      'priority', 9000 - p_row.rank, 'since', p_row.transitioned_at,
      'waits_as', case p_row.attempt_state
        when 'pending_retry_attempt' then 'retry' when 'pending_replay_attempt' then 'replay'
        when 'attempt_interrupted' then 'resume' else 'first' end)),
    null::timestamptz;
end;
$$;
