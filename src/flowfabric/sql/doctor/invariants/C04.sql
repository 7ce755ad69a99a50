-- Whom an end concerns is soon told.
--
-- Whoever ended an execution tells those who wait for it, and its children, at once where it can.
-- What is left is done by the reconciler wake_resolver of any worker, within seconds.
--
-- Holds:   soon, within 15 s; an error after 150 s while a worker is alive
-- Reads:   the database
-- Remedy:  Start a worker, or look into the log of those that run. If they are fine, a transaction
--          holds one of the executions concerned: look for it in pg_stat_activity.
select 'C04' as name, e.partition_key, e.execution_id,
       format('it ended at %s, and somebody has yet to be told', e.terminal_at) as problem,
       e.terminal_at < t.now - interval '150 s' and t.is_worked as is_stuck
from ff.execution e
cross join (
  select n.now, exists (
    select from ff.worker w where w.heartbeat_at + w.liveness_ttl > n.now) as is_worked
  from (select ff.now() as now offset 0) n
) t
where e.wakes_pending and e.terminal_at < t.now - interval '15 s'
