-- Grant one worker the right to reclaim an execution, for a short time. The execution must have
-- lost its lease. While the grant is live, no other worker can reclaim the execution.
--
-- If the lease has expired but is not marked as expired, the call marks the lease. If the execution
-- has reached the limit of reclaims, or has crashed three times while it ran alone, the call ends
-- the execution. These changes must stay when the grant is refused. Therefore a refusal because of
-- the state of the execution is an outcome, not an error.
--
-- After repeated crashes, an execution waits before a claim can reclaim it. A worker with a grant
-- need not wait.
--
-- Moves:    active leased -> active lease_expired_reclaimable (T19), active -> terminal failed (T22
--           over the limit of reclaims, or three crashes while it ran alone); propagation: runnable
--           blocked or suspended -> eligible (T4, T18), unfinished -> terminal cancelled (T23) or
--           skipped (T5)
-- Refuses:  WF001 invalid_input · WF207 not_leaseable (its lane is paused or disabled)
--           · WF301 not_found · WF405 grant_exists · as outcome: not_reclaimable
--           · reclaim_cap_exceeded
-- Locks:    the execution, waiting up to 2 s, then its grant. If the execution ends (T22), then also
--           the executions that this end affects, skipping locked ones
-- Repeat:   the same key and worker get the same answer while the grant lives
-- Rights:   app
drop function if exists ff.issue_reclaim_grant;
create function ff.issue_reclaim_grant(
  p_partition_key      smallint,
  p_namespace          text,
  p_execution_id       uuid,
  p_key                bytea,
  p_worker_id          text,
  p_worker_instance_id text,
  p_capabilities       text[],
  p_grant_ttl          interval
)
returns table (outcome text, kind text, expires_at timestamptz, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
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
  v_now     timestamptz;
  v_row     ff.execution;
  v_grant   ff.grant;
  v_word    text;
  v_missing text;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_grant(p_execution_id, p_key, p_grant_ttl);
  perform ff._check_claim(p_worker_id, p_worker_instance_id, p_execution_id, p_capabilities, 1,
                          interval '1 minute');
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  v_now := ff.now();
  v_now := greatest(v_now, v_row.transitioned_at);

  select g.* into v_grant from ff.grant g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id
    and case when g.expires_at > v_now then true else false end;
  if v_grant.key_hash = sha256(p_key) and v_grant.worker_id = p_worker_id
     and v_grant.kind = 'reclaim' then
    return query select 'granted', v_grant.kind::text, v_grant.expires_at, null::jsonb;
    return;
  end if;

  v_word := ff._prepare_reclaim(p_partition_key, v_row, v_now);
  if v_word is not null then
    return query select v_word, null::text, null::timestamptz, jsonb_build_object(
      'phase', v_row.phase, 'ownership', v_row.ownership, 'reclaim_count', v_row.reclaim_count,
      'max_reclaims', v_row.max_reclaims);
    return;
  elsif v_grant.kind is not null then
    perform ff._refuse('WF405', 'grant_exists', jsonb_build_object(
      'worker_id', v_grant.worker_id, 'expires_at', v_grant.expires_at));
  end if;
  perform ff._check_lane_open(v_row.route_id, v_now);
  v_missing := ff._missing_capabilities(v_row.route_id, p_capabilities);
  if v_missing is not null then
    return query select 'not_reclaimable', null::text, null::timestamptz, jsonb_build_object(
      'problem', 'capability_mismatch', 'missing', v_missing);
    return;
  end if;

  perform ff._write_grant(p_partition_key, p_execution_id, 'reclaim', p_key, p_worker_id,
                          p_worker_instance_id, v_now, p_grant_ttl);
  return query select 'granted', 'reclaim', v_now + p_grant_ttl, null::jsonb;
end;
$$;
