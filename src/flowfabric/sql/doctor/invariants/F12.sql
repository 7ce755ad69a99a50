-- A cancelled flow soon ends, and nothing is left written down of those that have ended.
--
-- Whoever cancels a flow ends its members; what is left is done by the reconciler cancel_backlog of
-- any worker. Under cancel_pending a member that runs may take its time.
--
-- Holds:   soon, within 50 s; an error after 500 s while a worker is alive
-- Reads:   the database
-- Remedy:  Start a worker, or look into the log of those that run. If they are fine, a transaction
--          holds one of the members: look for it in pg_stat_activity.
select 'F12' as name, h.partition_key, m.execution_id,
       format('flow %s was to be %s by %s, and %s', h.flow_id,
              case h.policy when 'cancel_all' then 'cancelled' else 'drained' end, h.due_at,
              case when m.execution_id is null then 'is still written down without a member'
                   when e.execution_id is null then 'a member that is gone is written down'
                   when e.phase = 'terminal' then 'a member that has ended is written down'
                   else 'a member is ' || e.public_state end) as problem,
       h.due_at < t.now - interval '500 s' and t.is_worked as is_stuck
from ff.cancel_backlog h
cross join (
  select n.now, exists (
    select from ff.worker w where w.heartbeat_at + w.liveness_ttl > n.now) as is_worked
  from (select ff.now() as now offset 0) n
) t
left join ff.cancel_backlog_member m
  on m.partition_key = h.partition_key and m.flow_id = h.flow_id
left join ff.execution e
  on e.partition_key = m.partition_key and e.execution_id = m.execution_id
where h.due_at < t.now - interval '50 s'
  and not (h.policy = 'cancel_pending' and coalesce(e.ownership = 'leased', false))
