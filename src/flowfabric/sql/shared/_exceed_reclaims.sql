-- End executions that lost their lease too often (T22). The caller holds the row locks.
drop function if exists ff._exceed_reclaims;
create function ff._exceed_reclaims(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_now           timestamptz
)
returns void
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_xid constant xid8 := pg_current_xact_id();
begin
  with item as materialized (
    select p_partition_key as pk, u.execution_id
    from unnest(p_execution_ids) u(execution_id)
    offset 0
  ),
  ended as (
    update ff.execution e set
      phase = 'terminal',
      ownership = 'unowned',
      eligibility = 'not_applicable',
      blocking_reason = 'none',
      outcome = 'failed',
      attempt_state = 'attempt_terminal',
      cause = 'exceed_reclaims',
      version = e.version + 1,
      last_lease_id = coalesce(e.lease_id, e.last_lease_id),
      last_lease_end = case when e.lease_id is null then e.last_lease_end else 'expire_lease' end,
      last_worker_id = coalesce(e.worker_id, e.last_worker_id),
      last_worker_instance_id = coalesce(e.worker_instance_id, e.last_worker_instance_id),
      lease_id = null,
      lease_expires_at = null,
      worker_id = null,
      worker_instance_id = null,
      due_at = null,
      attempt_ended_at = greatest(p_now, e.transitioned_at),
      attempt_ended_as = 'interrupted_reclaimed',
      failure_class = 'infra_crash',
      failure_category = 'reclaim_cap_exceeded',
      failure_reason = 'its workers vanished ' || (e.reclaim_count + 1) || ' times; the limit is '
                       || e.max_reclaims || ' reclaims',
      terminal_at = greatest(p_now, e.transitioned_at),
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at)
    from item i
    where e.partition_key = i.pk and e.execution_id = i.execution_id
    returning e.execution_id, e.version, e.attempt_index, e.last_lease_id, e.epoch, e.route_id,
              e.last_worker_instance_id, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at,
              e.reclaim_count
  )
  insert into ff.event (
    partition_key, xid, execution_id, version, kind, outcome, attempt_index, lease_id, epoch,
    worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, detail)
  select p_partition_key, v_xid, d.execution_id, d.version, 'failed', 'failed', d.attempt_index,
         d.last_lease_id, d.epoch, d.last_worker_instance_id, d.route_id, d.flow_id, d.namespace,
         d.instance_tag, d.transitioned_at,
         jsonb_build_object('category', 'reclaim_cap_exceeded', 'reclaims', d.reclaim_count)
  from ended d;
end;
$$;
