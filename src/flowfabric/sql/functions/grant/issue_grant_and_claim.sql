-- Grant an execution to a worker, and consume the grant in the same call. The default worker is
-- `operator`.
--
-- If the attempt is interrupted, it is resumed; otherwise a new attempt starts. The call checks
-- neither capabilities nor the state of the lane. A member of a cancelled flow is refused.
--
-- Moves:    runnable -> active (T9 new attempt, T10 resumed)
-- Refuses:  WF001 invalid_input · WF205 not_eligible · WF207 not_leaseable · WF301 not_found
--           · WF404 lease_conflict · WF405 grant_exists
-- Locks:    the execution, then its grant, then the gates of its quotas in id order; waits up to
--           2 s for each
-- Repeat:   with the same p_claim_id, the call returns the same lease while that lease is current
-- Rights:   app
drop function if exists ff.issue_grant_and_claim;
create function ff.issue_grant_and_claim(
  p_partition_key      smallint,
  p_namespace          text,
  p_execution_id       uuid,
  p_claim_id           uuid,
  p_lease_ttl          interval,
  p_worker_id          text default 'operator',
  p_worker_instance_id text default 'operator'
)
returns table (
  execution_id        uuid,
  namespace           text,
  lane                text,
  task                text,
  claim_kind          text,
  rank                smallint,
  order_at            timestamptz,
  epoch               bigint,
  attempt_index       integer,
  attempt_id          uuid,
  attempt_type        text,
  lease_expires_at    timestamptz,
  attempt_deadline_at timestamptz,
  deadline_at         timestamptz,
  retry_count         integer,
  payload_encoding    text,
  payload             bytea,
  replay_count        integer,
  trace_context       text,
  crash_count         integer,
  generation          integer
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now   timestamptz;
  v_row   ff.execution;
  v_grant ff.grant;
begin
  perform ff._check_namespace(p_namespace);
  if ff._is_nil_id(p_execution_id) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'execution_id', 'problem', 'must be the id of an execution'));
  end if;
  perform ff._check_claim(p_worker_id, p_worker_instance_id, p_claim_id, '{}', 1, p_lease_ttl);
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  v_now := ff.now();
  v_now := greatest(v_now, v_row.transitioned_at);
  if v_row.ownership = 'leased' and v_row.lease_id = p_claim_id then
    return query select * from ff._read_claimed(
      p_partition_key, p_namespace, array[p_execution_id], p_claim_id);
    return;
  end if;

  if v_row.ownership = 'leased' then
    perform ff._refuse('WF404', 'lease_conflict', jsonb_build_object(
      'worker_id', v_row.worker_id, 'lease_expires_at', v_row.lease_expires_at));
  elsif v_row.phase <> 'runnable' or v_row.eligibility <> 'eligible_now' then
    perform ff._refuse('WF205', 'not_eligible', jsonb_build_object(
      'phase', v_row.phase, 'eligibility', v_row.eligibility, 'ownership', v_row.ownership));
  end if;
  perform ff._check_flow_not_cancelled(p_partition_key, v_row.flow_id);
  perform ff._check_new_lease(p_partition_key, p_execution_id, p_claim_id, array[
    v_row.last_lease_id, v_row.attempt_id]);
  -- Delete an expired grant. If the grant is live, the call is refused, which also undoes the
  -- deletion.
  delete from ff.grant g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id
  returning g.* into v_grant;
  if v_grant.expires_at > v_now then
    perform ff._refuse('WF405', 'grant_exists', jsonb_build_object(
      'worker_id', v_grant.worker_id, 'expires_at', v_grant.expires_at));
  end if;
  perform ff._admit_with_grant(p_partition_key, p_execution_id, v_now);
  return query select * from ff._lease_executions(
    p_partition_key, array[p_execution_id], v_row.total_attempt_count > 0, p_claim_id, p_worker_id,
    p_worker_instance_id, p_lease_ttl, v_now);
end;
$$;
