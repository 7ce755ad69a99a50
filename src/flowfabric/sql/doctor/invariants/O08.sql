-- The priority of an execution matches its events.
--
-- The last event that changed the priority shows the priority of the row. If no event changed the
-- priority, the event of the submission shows it. If the event of the submission shows no priority,
-- the priority is 0.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `flowfabric priority <id> <number>` sets the priority, with an event. Find out who
--          wrote the row.
select 'O08' as name, e.partition_key, e.execution_id,
       format('priority %s, but its events say %s', 9000 - e.rank,
              coalesce(l.priority, 0)) as problem
from ff.execution e
left join (
  select distinct on (v.partition_key, v.execution_id) v.partition_key, v.execution_id,
         coalesce(v.detail ->> 'new_priority', v.detail ->> 'priority')::numeric as priority
  from ff.event v
  where v.kind in ('submitted', 'priority_changed') and v.detail is not null
  order by v.partition_key desc, v.execution_id desc, v.generation desc, v.event_id desc
) l on l.partition_key = e.partition_key and l.execution_id = e.execution_id
where e.rank <> 9000 - coalesce(l.priority, 0)
