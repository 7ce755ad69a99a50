-- Consume a claim grant: lease its execution and start a new attempt.
--
-- The claim id becomes the id of the lease and of the attempt. p_worker_id must be the worker that
-- has the grant. Any process of that worker can make this call.
--
-- Moves:    runnable -> active (T9)
-- Refuses:  WF001 invalid_input · WF205 not_eligible (a limit has no room)
--           · WF207 not_leaseable · WF208 use_claim_resumed · WF301 not_found
--           · WF404 lease_conflict · WF406 invalid_grant · WF407 grant_expired
-- Locks:    the execution, then its grant, then the gates of its quotas in id order; waits up to
--           2 s for each
-- Repeat:   with the same p_claim_id, the call returns the same lease while that lease is current
-- Rights:   app
drop function if exists ff.claim_execution;
create function ff.claim_execution(
  p_partition_key          smallint,
  p_namespace              text,
  p_execution_id           uuid,
  p_key                    bytea,
  p_worker_id              text,
  p_worker_instance_id     text,
  p_claim_id               uuid,
  p_lease_ttl              interval,
  p_expected_attempt_index integer default null
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
  v_now  timestamptz;
  v_row  ff.execution;
  v_word text;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_grant(p_execution_id, p_key);
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
    perform ff._refuse('WF207', 'not_leaseable', jsonb_build_object(
      'phase', v_row.phase, 'eligibility', v_row.eligibility, 'ownership', v_row.ownership));
  elsif v_row.attempt_state = 'attempt_interrupted' then
    perform ff._refuse('WF208', 'use_claim_resumed', jsonb_build_object(
      'attempt_index', v_row.attempt_index));
  elsif p_expected_attempt_index <> v_row.total_attempt_count then
    perform ff._refuse('WF207', 'not_leaseable', jsonb_build_object(
      'expected_attempt_index', p_expected_attempt_index,
      'next_attempt_index', v_row.total_attempt_count));
  end if;
  perform ff._check_lane_open(v_row.route_id, v_now);
  perform ff._check_flow_not_cancelled(p_partition_key, v_row.flow_id);
  perform ff._check_new_lease(p_partition_key, p_execution_id, p_claim_id, array[
    v_row.last_lease_id, v_row.attempt_id]);
  v_word := ff._consume_grant(p_partition_key, p_execution_id, 'claim', p_key, p_worker_id, v_now);
  if v_word = 'grant_expired' then
    perform ff._refuse('WF407', 'grant_expired');
  elsif v_word <> 'good' then
    perform ff._refuse('WF406', 'invalid_grant');
  end if;
  perform ff._admit_with_grant(p_partition_key, p_execution_id, v_now);
  return query select * from ff._lease_executions(
    p_partition_key, array[p_execution_id], v_row.total_attempt_count > 0, p_claim_id, p_worker_id,
    p_worker_instance_id, p_lease_ttl, v_now);
end;
$$;
