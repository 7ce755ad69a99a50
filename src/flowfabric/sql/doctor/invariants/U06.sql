-- The signals that ended a suspension exist and were noticed.
--
-- The suspension names these signals.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  None: the execution has continued without these signals. Report a bug.
select 'U06' as name, s.partition_key, s.execution_id,
       format('its suspension %s was ended by signal %s, which %s', s.suspension_id, u.id,
              case when g.signal_id is null then 'does not exist'
                   else 'was never noticed' end) as problem
from ff.suspension s
cross join lateral jsonb_array_elements_text(
  case when s.woken_by ->> 'by' = 'signals' then s.woken_by -> 'signal_ids' end) u(id)
left join ff.signal g
  on g.partition_key = s.partition_key and g.execution_id = s.execution_id
    and g.signal_id = u.id::uuid
where s.close_reason = 'resumed'
  and (g.signal_id is null or g.noticed_at is null)
