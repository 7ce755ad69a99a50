-- Mark leases as expired (T19). The caller has locked the executions and checked the expiry.
--
-- An expired lease counts as a crash of its execution (crash_count), with one exception. It does
-- not count if the execution had crashed before, and the worker reports starts (p_reports_starts of
-- ff.claim_executions) but has not reported the start of this execution.
--
-- After the third crash in a row, and after each further crash, the execution cannot be reclaimed
-- before its reclaim_at. The time until then grows with each crash, up to 4 minutes. It also
-- depends on the id and the epoch of the execution, so that executions that crashed together are
-- not reclaimed together.
--
-- An execution that has crashed three times while it ran alone has no reclaim_at. The next call
-- that would reclaim the execution ends it.
drop function if exists ff._expire_leases;
create function ff._expire_leases(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_now           timestamptz
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
  v_streaming  uuid[];
begin
  v_streaming := ff._release_gates(p_partition_key, p_execution_ids);
  with item as materialized (
    select p_partition_key as pk, u.execution_id
    from unnest(p_execution_ids) u(execution_id)
    offset 0
  ),
  marked as (
    update ff.execution e set
      ownership = 'lease_expired_reclaimable',
      blocking_reason = 'waiting_for_worker',
      attempt_state = 'attempt_interrupted',
      cause = 'expire_lease',
      version = e.version + 1,
      attempt_paused_at = greatest(p_now, e.transitioned_at),
      attempt_pause_cause = 'lease_expired',
      crash_count = w.crash_count,
      lone_crash_count = w.lone_crash_count,
      reclaim_at = w.reclaim_at,
      due_at = least(w.reclaim_at, e.deadline_at),
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at)
    from item i
    cross join lateral (
      select b.crash_count, b.lone_crash_count,
             case when b.crash_count >= 3 and b.lone_crash_count < 3
               then (p_now at time zone 'UTC'
                     + least(interval '1 second' * power(2, least(b.crash_count - 3, 8)),
                             interval '4 minutes')
                       * (1 - ((get_byte(b.id, 14) * 256 + get_byte(b.id, 15) + b.epoch * 40503)
                               % 65536) / 131072.0))
                    at time zone 'UTC'
             end as reclaim_at
      from (
        select uuid_send(x.execution_id) as id, x.epoch,
               case when x.lease_start = 'waiting' and x.crash_count > 0 then x.crash_count
                    else x.crash_count + 1 end as crash_count,
               x.lone_crash_count + (x.lease_start = 'alone')::integer as lone_crash_count
        from ff.execution x
        where x.partition_key = i.pk and x.execution_id = i.execution_id
        offset 0
      ) b
    ) w
    where e.partition_key = i.pk and e.execution_id = i.execution_id
    returning e.execution_id, e.version, e.attempt_index, e.lease_id, e.epoch, e.route_id,
              e.worker_instance_id, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at
  )
  insert into ff.event (
    partition_key, generation, xid, execution_id, version, kind, attempt_index, lease_id, epoch,
    worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at)
  select p_partition_key, v_generation, v_xid, m.execution_id, m.version, 'lease_expired',
         m.attempt_index,
         m.lease_id, m.epoch, m.worker_instance_id, m.route_id, m.flow_id, m.namespace,
         m.instance_tag, m.transitioned_at
  from marked m;
  if v_streaming is not null then
    perform ff._close_streams(p_partition_key, v_streaming, 'expire_lease', p_now);
  end if;
end;
$$;
