-- Unblock executions that were blocked because no capable worker was alive (T7, quiet). An
-- execution is unblocked if a live worker covers its route now. If p_worker_instance_id is given,
-- only that worker counts. At most p_limit executions are unblocked, and locked rows are skipped.
-- Returns how many executions became eligible.
drop function if exists ff._unblock_covered_routes;
create function ff._unblock_covered_routes(
  p_partition_key      smallint,
  p_limit              integer,
  p_now                timestamptz,
  p_worker_namespace   text default null,
  p_worker_instance_id text default null
)
returns integer
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_workers jsonb;
  v_ids     uuid[];
begin
  -- This is one lookup in an index that is nearly always empty.
  if not exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.eligibility = 'blocked_by_route') then
    return 0;
  end if;
  -- The workers are read first: on Citus their table is on another node than the executions.
  v_workers := (
    select jsonb_agg(to_jsonb(w)) from (
      select x.namespace, x.lanes, x.tasks, x.capabilities
      from ff.worker x
      where x.heartbeat_at + x.liveness_ttl > p_now
        and (p_worker_instance_id is null
             or (x.namespace = p_worker_namespace
                 and x.worker_instance_id = p_worker_instance_id))) w);
  v_ids := array(
    select b.execution_id
    from ff.route r
    cross join lateral (
      select e.execution_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.route_id = r.route_id
        and e.eligibility = 'blocked_by_route'
      limit p_limit
      for no key update skip locked
    ) b
    where exists (
      select from jsonb_to_recordset(v_workers)
        w(namespace text, lanes text[], tasks text[], capabilities text[])
      where w.namespace in ('', r.namespace)
        and (w.lanes is null or r.lane = any (w.lanes))
        and (w.tasks is null or r.task = any (w.tasks))
        and r.capabilities <@ w.capabilities)
    limit p_limit);
  perform ff._make_eligible(p_partition_key, u.id, 'unblock', null, p_now, null, null)
  from unnest(v_ids) u(id);
  return cardinality(v_ids);
end;
$$;
