-- The end of an execution is soon propagated.
--
-- To propagate an end is to wake the executions that wait for that end, to cancel bound children,
-- and to resolve edges. The transaction that ends the execution does as much of this as it can; it
-- skips locked rows. The reconciler wake_resolver of any worker does the rest within seconds.
--
-- Holds:   soon, within 15 s. A finding is a warning. It is an error after 150 s, but only if
--          a worker is alive
-- Reads:   the database
-- Remedy:  Start a worker, or read the logs of the running workers. If the logs show no error, a
--          transaction locks one of the executions: find that transaction in pg_stat_activity.
select 'C04' as name, e.partition_key, e.execution_id,
       format('it ended at %s, and its end is not yet propagated', e.terminal_at) as problem,
       e.terminal_at < t.now - interval '150 s' and t.is_worked as is_stuck
from ff.execution e
cross join (
  select n.now, exists (
    select from ff.worker w where w.heartbeat_at + w.liveness_ttl > n.now) as is_worked
  from (select ff.now() as now offset 0) n
) t
where e.wakes_pending and e.terminal_at < t.now - interval '15 s'
