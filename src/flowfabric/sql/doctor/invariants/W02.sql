-- A dead worker is soon removed from the registry and renews no lease.
--
-- A worker is dead if its last heartbeat is older than its liveness_ttl. A dead worker that still
-- renews leases is partly broken. A finding about one of these leases is always a warning.
--
-- Holds:   soon, within 95 s. A finding is a warning. It is an error after 16 min, but only if
--          another worker is alive
-- Reads:   the database
-- Remedy:  Read the log of the worker. To remove the worker from the registry, start another
--          worker: every worker sweeps the registry.
select 'W02' as name, null::smallint as partition_key, null::uuid as execution_id,
       format('worker %s has been silent since %s', w.worker_instance_id,
              w.heartbeat_at) as problem,
       w.heartbeat_at + w.liveness_ttl < t.now - interval '16 min' and t.is_worked as is_stuck
from ff.worker w
cross join (
  select n.now, exists (
    select from ff.worker w where w.heartbeat_at + w.liveness_ttl > n.now) as is_worked
  from (select ff.now() as now offset 0) n
) t
where w.heartbeat_at + w.liveness_ttl < t.now - interval '95 s'
union all
select 'W02', e.partition_key, e.execution_id,
       format('worker %s has been silent since %s and renews this lease', w.worker_instance_id,
              w.heartbeat_at),
       false
from ff.worker w
cross join (select ff.now() as now offset 0) t
join ff.execution e on e.worker_instance_id = w.worker_instance_id
where w.heartbeat_at + w.liveness_ttl < t.now - interval '95 s'
  and e.ownership = 'leased' and e.due_at is not null and e.lease_expires_at > t.now
