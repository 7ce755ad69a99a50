-- The flow of every member exists.
--
-- The flow is in the partition and the namespace of its members.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  The member continues without its flow, which was deleted by hand. Restore the flow's row
--          from a backup.
select 'F02' as name, e.partition_key, e.execution_id,
       format('its flow %s %s', e.flow_id,
              case when f.flow_id is null then 'does not exist'
                   else 'is of the namespace ' || f.namespace end) as problem
from ff.execution e
left join ff.flow f on f.partition_key = e.partition_key and f.flow_id = e.flow_id
where e.flow_id is not null and (f.flow_id is null or f.namespace <> e.namespace)
