-- An expired lease is soon marked as expired.
--
-- The reconciler lease_expiry of any worker marks the lease within seconds. Until then no other
-- worker can reclaim the execution.
--
-- Holds:   soon, within 15 s. A finding is a warning. It is an error after 150 s, but only if
--          a worker is alive
-- Reads:   the database
-- Remedy:  Start a worker, or read the logs of the running workers: their reconcilers fail or are
--          too slow. `flowfabric worker` runs all reconcilers.
select 'L09' as name, e.partition_key, e.execution_id,
       format('the lease of %s expired at %s and is not marked', e.worker_instance_id,
              e.lease_expires_at) as problem,
       e.lease_expires_at < t.now - interval '150 s' and t.is_worked as is_stuck
from ff.execution e
cross join (
  select n.now, exists (
    select from ff.worker w where w.heartbeat_at + w.liveness_ttl > n.now) as is_worked
  from (select ff.now() as now offset 0) n
) t
where e.ownership = 'leased'
  and e.due_at < (select ff.now()) - interval '15 s'
  and e.lease_expires_at < t.now - interval '15 s'
