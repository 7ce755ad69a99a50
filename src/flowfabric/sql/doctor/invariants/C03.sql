-- A child that is bound to its parent ends with the parent.
--
-- A bound child is unfinished only in two cases. Either its parent is unfinished and marked as
-- awaited, so that the end of the parent will be propagated. Or the parent has ended, and its row
-- says that the propagation is pending.
--
-- Holds:   always
-- Reads:   everything
-- Remedy:  `flowfabric cancel <id>`.
select 'C03' as name, e.partition_key, e.execution_id,
       format('its parent %s %s', e.parent_id,
              case when p.execution_id is null then 'is gone'
                   when p.phase = 'terminal' then 'has ended'
                   else 'is not marked as awaited' end) as problem
from ff.execution e
left join ff.execution p on p.partition_key = e.partition_key and p.execution_id = e.parent_id
where e.ends_with_parent and e.phase <> 'terminal'
  and (p.execution_id is null or not p.is_awaited
       or (p.phase = 'terminal' and not p.wakes_pending))
