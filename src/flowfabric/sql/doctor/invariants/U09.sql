-- A due timeout of a suspension is soon applied, an expired waitpoint is soon closed, and a stored
-- signal is soon noticed.
--
-- Three reconcilers do this every few seconds. The token of an expired waitpoint is refused even
-- before the waitpoint is closed. Once a wait has asked for a waitpoint, it can no longer expire.
--
-- Holds:   soon, within 60 s. A finding is a warning. It is an error after 10 min, but only if
--          a worker is alive
-- Reads:   the database
-- Remedy:  Start a worker, or read the logs of the running workers for suspension_timeouts,
--          waitpoint_expiry and signal_notices.
select 'U09' as name, d.partition_key, d.execution_id,
       format('%s since %s', d.what, d.due_at) as problem,
       d.due_at < t.now - interval '10 min' and t.is_worked as is_stuck
from (
  select n.now, exists (
    select from ff.worker w where w.heartbeat_at + w.liveness_ttl > n.now) as is_worked
  from (select ff.now() as now offset 0) n
) t
cross join lateral (
  select s.partition_key, s.execution_id, 'its suspension has been overdue' as what,
         s.timeout_at as due_at
  from ff.suspension s
  where s.closed_at is null and s.timeout_at < t.now - interval '60 s'
  union all
  select w.partition_key, w.execution_id, format('the time of waitpoint %s has been over', w.key),
         w.expires_at
  from ff.waitpoint w
  where w.closed_at is null and w.activated_at is null and w.expires_at < t.now - interval '60 s'
  union all
  select b.partition_key, b.execution_id, 'a signal has waited to be noticed', b.stored_at
  from ff.signal_inbox b
  where b.stored_at < t.now - interval '60 s'
) d
