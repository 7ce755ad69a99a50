-- Grant a waiting execution to one worker for a short time.
--
-- While the grant is live, claims of other workers skip the execution. The execution itself does
-- not change. An expired grant is replaced. The caller makes the key; only its hash is stored.
--
-- The returned kind says how to use the grant: `claim` with ff.claim_execution, `resume` with
-- ff.claim_resumed_execution.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF002 capability_mismatch · WF205 not_eligible
--           · WF207 not_leaseable (its lane is paused or disabled, or its flow is cancelled)
--           · WF301 not_found · WF405 grant_exists
-- Locks:    the execution, waiting up to 2 s, then its grant
-- Repeat:   the same key and worker get the same answer while the grant lives
-- Rights:   app
drop function if exists ff.issue_claim_grant;
create function ff.issue_claim_grant(
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
  v_kind    ff.grant_kind;
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
     and v_grant.kind <> 'reclaim' then
    return query select 'granted', v_grant.kind::text, v_grant.expires_at, null::jsonb;
    return;
  end if;

  if v_row.phase <> 'runnable' or v_row.eligibility <> 'eligible_now' then
    perform ff._refuse('WF205', 'not_eligible', jsonb_build_object(
      'phase', v_row.phase, 'eligibility', v_row.eligibility, 'ownership', v_row.ownership));
  elsif v_grant.kind is not null then
    perform ff._refuse('WF405', 'grant_exists', jsonb_build_object(
      'worker_id', v_grant.worker_id, 'expires_at', v_grant.expires_at));
  end if;
  perform ff._check_lane_open(v_row.route_id, v_now);
  perform ff._check_flow_not_cancelled(p_partition_key, v_row.flow_id);
  v_missing := ff._missing_capabilities(v_row.route_id, p_capabilities);
  if v_missing is not null then
    perform ff._refuse('WF002', 'capability_mismatch', jsonb_build_object(
      'field', 'capabilities', 'problem', 'the worker lacks ' || v_missing,
      'missing', v_missing));
  end if;

  v_kind := case v_row.attempt_state when 'attempt_interrupted' then 'resume' else 'claim' end;
  perform ff._write_grant(p_partition_key, p_execution_id, v_kind, p_key, p_worker_id,
                          p_worker_instance_id, v_now, p_grant_ttl);
  return query select 'granted', v_kind::text, v_now + p_grant_ttl, null::jsonb;
end;
$$;
