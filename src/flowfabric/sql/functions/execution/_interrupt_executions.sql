-- End the leases of executions whose attempts resume later. The executions are released or delayed
-- (T15), wait for runs or dependencies (T16), are suspended (T17), are held (T30) or are continued
-- (T31). p_until_at is the time until which the executions wait. It is null if they do not wait for
-- a time.
--
-- The attempt is interrupted and not ended. The next claim resumes it with the time that was left
-- until its timeout. Crashes stay counted. Otherwise an execution that sleeps between its crashes
-- would never count as suspect.
--
-- The caller has locked the executions and checked the fences.
drop function if exists ff._interrupt_executions;
create function ff._interrupt_executions(
  p_partition_key   smallint,
  p_execution_ids   uuid[],
  p_cause           ff.cause,
  p_eligibility     ff.eligibility,
  p_blocking_reason ff.blocking_reason,
  p_lease_end       ff.lease_end,
  p_kind            ff.event_kind,
  p_pause_cause     text,
  p_now             timestamptz,
  p_until_at        timestamptz default null,
  p_blocking_detail text default null,
  p_detail          jsonb default null,
  p_wait_left       integer default null,
  p_suspension_id   uuid default null,
  p_line_id         bigint default null
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
  v_xid        constant xid8 := pg_current_xact_id();
  v_generation constant integer := ff._enter_generation(p_partition_key);
  v_route      bigint;
  v_routes     bigint[] := '{}';
  v_streaming  uuid[];
begin
  v_streaming := ff._release_gates(p_partition_key, p_execution_ids);
  for v_route in
    with item as materialized (
      select p_partition_key as pk, u.execution_id
      from unnest(p_execution_ids) u(execution_id)
      offset 0
    ),
    interrupted as (
      update ff.execution e set
        phase = case when p_suspension_id is null then 'runnable'::ff.phase else 'suspended' end,
        ownership = 'unowned',
        eligibility = p_eligibility,
        blocking_reason = p_blocking_reason,
        blocking_detail = p_blocking_detail,
        line_id = p_line_id,
        blocked_at = case when p_eligibility in ('blocked_by_operator', 'blocked_by_budget')
                       then greatest(p_now, e.transitioned_at) end,
        attempt_state = 'attempt_interrupted',
        cause = p_cause,
        version = e.version + 1,
        delayed_until = p_until_at,
        due_at = least(p_until_at, e.deadline_at),
        last_lease_id = e.lease_id,
        last_lease_end = p_lease_end,
        last_lease_retry_at = p_until_at,
        last_worker_id = e.worker_id,
        last_worker_instance_id = e.worker_instance_id,
        lease_id = null,
        lease_expires_at = null,
        worker_id = null,
        worker_instance_id = null,
        attempt_paused_at = greatest(p_now, e.transitioned_at),
        attempt_pause_cause = p_pause_cause,
        attempt_time_left = case when e.attempt_deadline_at is not null then greatest(
          e.attempt_deadline_at - greatest(p_now, e.transitioned_at), interval '0')
          else e.attempt_time_left end,
        attempt_deadline_at = null,
        wait_no = e.wait_no + (p_cause = 'wait_for_runs' or p_wait_left is not null)::integer,
        wait_left = p_wait_left,
        suspension_id = p_suspension_id,
        transitioned_at = greatest(p_now, e.transitioned_at),
        mutated_at = greatest(p_now, e.transitioned_at)
      from item i
      where e.partition_key = i.pk and e.execution_id = i.execution_id
      returning e.execution_id, e.version, e.attempt_index, e.last_lease_id, e.epoch, e.route_id,
                e.last_worker_instance_id, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at
    )
    insert into ff.event (
      partition_key, generation, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
      worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, detail)
    select p_partition_key, v_generation, v_xid, r.execution_id, r.version, p_kind, r.attempt_index,
           r.last_lease_id, r.epoch, r.last_worker_instance_id, r.route_id, r.flow_id, r.namespace,
           r.instance_tag, r.transitioned_at, p_detail
    from interrupted r
    returning route_id
  loop
    if v_route <> all (v_routes) then
      v_routes := v_routes || v_route;
    end if;
  end loop;

  if v_streaming is not null then
    perform ff._close_streams(p_partition_key, v_streaming, p_lease_end, p_now);
  end if;
  if p_eligibility = 'eligible_now' then
    perform ff._hint_ready(p_partition_key, v_routes);
  end if;
end;
$$;
