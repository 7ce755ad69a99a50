-- The backlog of a cancelled flow lists every member that must still end.
--
-- The backlog lists every member that is still unfinished after its flow was cancelled, unless the
-- policy of the cancellation lets members continue. A backlog lists only members of its own flow,
-- and that flow is cancelled.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `flowfabric cancel <id>` for a member that is still unfinished.
select 'F13' as name, e.partition_key, e.execution_id,
       format('%s, though its flow %s was cancelled (%s) at %s', e.public_state, f.flow_id,
              f.cancel_policy, f.cancelled_at) as problem
from ff.flow f
join ff."execution" e on e.partition_key = f.partition_key and e.flow_id = f.flow_id
where f.cancel_policy in ('cancel_all', 'cancel_pending')
  and e.flow_id is not null and e.phase <> 'terminal'
  and not exists (
    select from ff.cancel_backlog_member m
    join ff.cancel_backlog h on h.partition_key = m.partition_key and h.flow_id = m.flow_id
    where m.partition_key = e.partition_key and m.flow_id = e.flow_id
      and m.execution_id = e.execution_id)
union all
select 'F13', m.partition_key, m.execution_id,
       format('is on the backlog of flow %s, %s', m.flow_id,
              case when h.flow_id is null then 'which has no backlog'
                   when f.flow_id is null then 'which does not exist'
                   when f.cancel_policy is distinct from h.policy
                     then 'which was cancelled with another policy or not at all'
                   else 'of which it is not a member' end)
from ff.cancel_backlog_member m
left join ff.cancel_backlog h on h.partition_key = m.partition_key and h.flow_id = m.flow_id
left join ff."flow" f on f.partition_key = m.partition_key and f.flow_id = m.flow_id
left join ff."execution" e
  on e.partition_key = m.partition_key and e.execution_id = m.execution_id
where h.flow_id is null or f.cancel_policy is distinct from h.policy
   or e.flow_id <> m.flow_id
