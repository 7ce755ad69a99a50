-- Give leases back unfinished: a worker that shuts down hands its executions to the next one.
--
-- The attempt is interrupted and goes on with the next claim; it costs neither a retry nor a
-- reclaim. Returns a row for every lease that was not released; no row means all of them were.
--
-- Moves:    active -> runnable eligible, attempt interrupted (T15); a lease found expired is
--           marked so (T19)
-- Refuses:  WF001 invalid_input · per item: busy · not_found · duplicate · not_active
--           · lease_revoked · lease_expired · stale_lease · invalid
-- Locks:    executions in id order, never waiting; a single item waits up to 2 s with p_wait
-- Replay:   the lease that was released gets `released` again
drop function if exists ff.release_leases;
create function ff.release_leases(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[],
  p_lease_ids     uuid[],
  p_epochs        bigint[],
  p_attempt_ids   uuid[],
  p_cause         text default 'worker_shutdown',
  p_wait          boolean default false
)
returns table (item integer, outcome text, detail jsonb)
language plpgsql
security definer
set search_path = ''
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
  v_now    timestamptz;
  v_xid    xid8;
  v_judged ff.verdict[];
  v_routes bigint[];
begin
  perform ff._check_batch(cardinality(p_execution_ids), array[
    cardinality(p_lease_ids), cardinality(p_epochs), cardinality(p_attempt_ids)], p_wait);
  if p_cause is null or octet_length(p_cause) > 256 or p_cause ~ '[\x01-\x1f\x7f]' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cause', 'problem', 'must be at most 256 bytes without control characters'));
  end if;
  v_judged := ff._judge_leases(p_partition_key, p_namespace, 'release', p_execution_ids,
                               p_lease_ids, p_epochs, p_attempt_ids, p_wait);
  v_now := ff.now();
  v_xid := pg_current_xact_id();

  with item as materialized (
    select p_partition_key as pk, j.execution_id
    from unnest(v_judged) j
    where j.word = 'held'
    offset 0
  ),
  released as (
    update ff.execution e set
      phase = 'runnable',
      ownership = 'unowned',
      eligibility = 'eligible_now',
      blocking_reason = 'waiting_for_worker',
      attempt_state = 'attempt_interrupted',
      cause = 'release',
      version = e.version + 1,
      last_lease_id = e.lease_id,
      last_lease_end = 'release',
      last_lease_retry_at = null,
      last_worker_id = e.worker_id,
      last_worker_instance_id = e.worker_instance_id,
      lease_id = null,
      lease_expires_at = null,
      worker_id = null,
      worker_instance_id = null,
      due_at = null,
      attempt_paused_at = greatest(v_now, e.transitioned_at),
      attempt_pause_cause = p_cause,
      attempt_time_left = case when e.attempt_deadline_at is not null then greatest(
        e.attempt_deadline_at - greatest(v_now, e.transitioned_at), interval '0') end,
      attempt_deadline_at = null,
      transitioned_at = greatest(v_now, e.transitioned_at),
      mutated_at = greatest(v_now, e.transitioned_at)
    from item i
    where e.partition_key = i.pk and e.execution_id = i.execution_id
    returning e.execution_id, e.version, e.attempt_index, e.last_lease_id, e.epoch, e.route_id,
              e.last_worker_instance_id, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at
  ),
  logged as (
    insert into ff.event (
      partition_key, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
      worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, detail)
    select p_partition_key, v_xid, r.execution_id, r.version, 'released', r.attempt_index,
           r.last_lease_id, r.epoch, r.last_worker_instance_id, r.route_id, r.flow_id, r.namespace,
           r.instance_tag, r.transitioned_at, jsonb_build_object('cause', p_cause)
    from released r
  )
  select array_agg(distinct r.route_id) into v_routes from released r;

  perform ff._hint_ready(p_partition_key, v_routes);
  return query
  select j.item, case j.word when 'repeat' then 'released' else j.word end, j.detail
  from unnest(v_judged) j
  where j.word <> 'held';
end;
$$;
