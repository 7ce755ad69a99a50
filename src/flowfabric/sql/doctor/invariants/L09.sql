-- A lease that ran out is soon marked so.
--
-- The reconciler lease_expiry of any worker does it, within seconds. Until then nobody else can
-- take the work over.
--
-- Holds:   soon, within 15 s; an error after 150 s while a worker is alive
-- Reads:   the database
-- Remedy:  Start a worker, or look into the log of those that run: their reconcilers fail or are
--          too slow. `flowfabric worker` runs them all.
select 'L09' as name, e.partition_key, e.execution_id,
       format('the lease of %s ran out at %s and is still there', e.worker_instance_id,
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
