-- Soon after a flow is cancelled, its members have ended and its backlog is gone.
--
-- The client that cancels a flow also cancels the members on the backlog of the flow, as far as it
-- can. When the grace of the cancel is over, the reconciler cancel_backlog of any worker cancels
-- the members that are left. The times below count from the end of the grace. If the cancel policy
-- is cancel_pending, a running member can finish first and is not reported.
--
-- Holds:   soon, within 50 s. A finding is a warning. It is an error after 500 s, but only if
--          a worker is alive
-- Reads:   the database
-- Remedy:  Start a worker, or read the logs of the running workers. If the logs show no error, a
--          transaction locks one of the members: find that transaction in pg_stat_activity.
select 'F12' as name, h.partition_key, m.execution_id,
       format('flow %s should have been %s by %s, but %s', h.flow_id,
              case h.policy when 'cancel_all' then 'cancelled' else 'drained' end, h.due_at,
              case when m.execution_id is null then 'its backlog entry has no member'
                   when e.execution_id is null then 'its backlog lists a trimmed member'
                   when e.phase = 'terminal' then 'its backlog lists an ended member'
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
