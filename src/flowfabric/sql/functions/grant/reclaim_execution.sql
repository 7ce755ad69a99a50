-- Consume a reclaim grant: take the execution over from a holder that lost its lease.
--
-- The old attempt ends as interrupted_reclaimed and moves to the history. A new attempt starts. The
-- claim id becomes the id of the attempt and of the lease.
--
-- The outcome is `reclaimed`, or a refusal because of the state of the execution or of the grant.
-- Such a refusal is not an error, because an error would undo the transitions T19 and T22 (see
-- Moves).
--
-- Moves:    active -> active (T21), active leased -> active lease_expired_reclaimable (T19), active
--           -> terminal failed (T22 over the limit of reclaims, or three crashes while it ran
--           alone); propagation: runnable blocked or suspended -> eligible (T4, T18), unfinished ->
--           terminal cancelled (T23) or skipped (T5)
-- Refuses:  WF001 invalid_input (also for a grant of another worker)
--           · WF207 not_leaseable (its lane is paused or disabled)
--           · WF205 not_eligible (a limit has no room) · WF301 not_found
--           · as outcome: not_reclaimable · reclaim_cap_exceeded · invalid_grant · grant_expired
-- Locks:    the execution, then its grant, then the gates of its quotas in id order, waiting up to
--           2 s for each. If the execution ends (T22), the call locks no gates, but the executions
--           that this end affects, skipping locked ones
-- Repeat:   with the same p_claim_id, the call returns the same lease while that lease is current
-- Rights:   app
drop function if exists ff.reclaim_execution;
create function ff.reclaim_execution(
  p_partition_key      smallint,
  p_namespace          text,
  p_execution_id       uuid,
  p_key                bytea,
  p_worker_id          text,
  p_worker_instance_id text,
  p_claim_id           uuid,
  p_lease_ttl          interval
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
  generation          integer,
  outcome             text,
  detail              jsonb
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
    return query select c.*, 'reclaimed', null::jsonb
    from ff._read_claimed(
      p_partition_key, p_namespace, array[p_execution_id], p_claim_id) c;
    return;
  end if;

  v_word := ff._prepare_reclaim(p_partition_key, v_row, v_now);
  if v_word is null then
    perform ff._check_lane_open(v_row.route_id, v_now);
    perform ff._check_new_lease(p_partition_key, p_execution_id, p_claim_id, array[
      v_row.lease_id, v_row.last_lease_id, v_row.attempt_id]);
    v_word := ff._consume_grant(
      p_partition_key, p_execution_id, 'reclaim', p_key, p_worker_id, v_now);
    if v_word = 'other_worker' then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'worker_id', 'problem', 'the grant is for another worker'));
    end if;
  end if;
  if v_word <> 'good' then
    outcome := v_word;
    detail := jsonb_build_object(
      'phase', v_row.phase, 'ownership', v_row.ownership, 'reclaim_count', v_row.reclaim_count,
      'max_reclaims', v_row.max_reclaims);
    return next;
    return;
  end if;
  perform ff._admit_with_grant(p_partition_key, p_execution_id, v_now);
  return query select l.*, 'reclaimed', null::jsonb
  from ff._lease_executions(
    p_partition_key, array[p_execution_id], true, p_claim_id, p_worker_id, p_worker_instance_id,
    p_lease_ttl, v_now) l;
end;
$$;
