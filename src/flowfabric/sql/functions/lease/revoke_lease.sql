-- Revoke the lease of a running execution. The next claim reclaims the execution.
--
-- p_expected_lease_id and p_worker_instance_id are optional. If the execution has another lease or
-- another holder by now, nothing happens, and the answer says why. The holder's process gets a hint
-- immediately.
--
-- Moves:    active leased -> active lease_revoked (T20)
-- Refuses:  WF001 invalid_input · WF301 not_found
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   `already_satisfied`, with the reason; `already_applied` if p_if_version is given and
--           the version has changed since
-- Rights:   app
drop function if exists ff.revoke_lease;
create function ff.revoke_lease(
  p_partition_key      smallint,
  p_namespace          text,
  p_execution_id       uuid,
  p_expected_lease_id  uuid default null,
  p_worker_instance_id text default null,
  p_reason             text default null,
  p_actor              text default null,
  p_if_version         integer default null
)
returns table (outcome text, public_state text, version integer, detail jsonb)
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
  v_row        ff.execution;
  v_now        timestamptz;
  v_xid        xid8;
  v_generation integer;
  v_word       text;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  v_now := ff.now();
  v_now := greatest(v_now, v_row.transitioned_at);
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  v_word := case
    when v_row.ownership <> 'leased' or v_row.lease_expires_at <= v_now then 'no_active_lease'
    when v_row.lease_id <> p_expected_lease_id then 'lease_id_mismatch'
    when v_row.worker_instance_id <> nullif(p_worker_instance_id, '')
      then 'different_worker_instance_id' end;
  if v_word is not null then
    return query select 'already_satisfied', v_row.public_state::text, v_row.version,
                        jsonb_build_object('reason', v_word);
    return;
  end if;

  v_xid := pg_current_xact_id();
  v_generation := ff._enter_generation(p_partition_key);
  with revoked as (
    update ff.execution e set
      ownership = 'lease_revoked',
      blocking_reason = 'waiting_for_worker',
      attempt_state = 'attempt_interrupted',
      cause = 'revoke_lease',
      version = e.version + 1,
      epoch = e.epoch + 1,
      last_lease_id = e.lease_id,
      last_lease_end = 'revoke_lease',
      last_lease_retry_at = null,
      last_worker_id = e.worker_id,
      last_worker_instance_id = e.worker_instance_id,
      lease_id = null,
      lease_expires_at = null,
      worker_id = null,
      worker_instance_id = null,
      due_at = e.deadline_at,
      attempt_deadline_at = null,
      attempt_time_left = null,
      attempt_paused_at = v_now,
      attempt_pause_cause = 'lease_revoked',
      transitioned_at = v_now,
      mutated_at = v_now
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    returning e.version, e.epoch
  )
  insert into ff.event (
    partition_key, generation, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
    worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, actor, detail)
  select p_partition_key, v_generation, v_xid, p_execution_id, r.version, 'lease_revoked',
         v_row.attempt_index,
         v_row.lease_id, r.epoch, v_row.worker_instance_id, v_row.route_id, v_row.flow_id,
         v_row.namespace, v_row.instance_tag, v_now, p_actor,
         jsonb_strip_nulls(jsonb_build_object('reason', p_reason))
  from revoked r;

  if v_row.quota_ids is not null then
    perform ff._release_gates(p_partition_key, array[p_execution_id]);
  end if;
  if v_row.has_stream then
    perform ff._close_streams(p_partition_key, array[p_execution_id], 'revoke_lease', v_now);
  end if;
  perform ff._hint_ready(p_partition_key, array[v_row.route_id]);
  perform ff._hint_lease_lost(p_partition_key, array[p_execution_id]);
  perform ff._write_execution_audit(
    p_partition_key, v_row, p_actor, 'revoke_lease', p_reason,
    jsonb_build_object('worker_instance_id', v_row.worker_instance_id));
  return query
  select 'revoked', 'active', v_row.version + 1,
         jsonb_build_object('lease_id', v_row.lease_id, 'epoch', v_row.epoch + 1,
                            'worker_instance_id', v_row.worker_instance_id);
end;
$$;
