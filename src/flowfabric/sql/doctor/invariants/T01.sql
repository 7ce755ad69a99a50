-- A due timer is soon handled.
--
-- The reconcilers of any worker act within seconds. They make delayed executions eligible. They let
-- workers reclaim an execution that had to wait after several crashes. They end attempts and
-- executions whose time is over.
--
-- Holds:   soon, within 15 s. A finding is a warning. It is an error after 150 s, but only if
--          a worker is alive
-- Reads:   the database
-- Remedy:  Start a worker, or read the logs of the running workers: their reconcilers fail or are
--          too slow.
select 'T01' as name, e.partition_key, e.execution_id,
       format('%s has been due since %s', case d.due_at
                when e.delayed_until then 'its delay'
                when e.reclaim_at then 'its reclaim'
                when e.deadline_at then 'its deadline'
                else 'the timeout of its attempt' end, d.due_at) as problem,
       d.due_at < t.now - interval '150 s' and t.is_worked as is_stuck
from ff.execution e
cross join (
  select n.now, exists (
    select from ff.worker w where w.heartbeat_at + w.liveness_ttl > n.now) as is_worked
  from (select ff.now() as now offset 0) n
) t
cross join lateral (
  select least(e.delayed_until, e.reclaim_at, e.deadline_at,
               case when e.ownership = 'leased' then e.attempt_deadline_at end) as due_at) d
where e.phase <> 'terminal'
  and e.due_at < (select ff.now()) - interval '15 s'
  and d.due_at < t.now - interval '15 s'
