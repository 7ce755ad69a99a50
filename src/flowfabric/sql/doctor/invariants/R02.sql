-- An expired grant is soon removed.
--
-- Claims ignore a grant from the moment it expires, so nothing waits for its removal.
--
-- Holds:   soon, within 20 s. A finding is a warning. It is an error after 200 s, but only if
--          a worker is alive
-- Reads:   the database
-- Remedy:  Start a worker, or read the logs of the running workers for the reconciler
--          grant_reaper.
select 'R02' as name, g.partition_key, g.execution_id,
       format('the grant for %s expired at %s and was not removed', g.worker_instance_id,
              g.expires_at) as problem,
       g.expires_at < t.now - interval '200 s' and t.is_worked as is_stuck
from ff.grant g
cross join (
  select n.now, exists (
    select from ff.worker w where w.heartbeat_at + w.liveness_ttl > n.now) as is_worked
  from (select ff.now() as now offset 0) n
) t
where g.expires_at < t.now - interval '20 s'
