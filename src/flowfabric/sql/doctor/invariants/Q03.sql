-- An execution in line is in the line of one of its own gates, and that line exists.
--
-- A claim finds an execution in line only through that line.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `flowfabric unblock <id>`: the next claim puts the execution into the right line.
select 'Q03' as name, e.partition_key, e.execution_id,
       format('in the line of %s, which is %s', e.line_id,
              case when y.gate_id is null then 'missing' else 'none of its gates' end) as problem
from ff.execution e
left join ff.line y
  on y.partition_key = e.partition_key and y.route_id = e.route_id and y.gate_id = e.line_id
where e.line_id is not null
  and (y.gate_id is null
       or not coalesce(e.line_id = any (e.quota_ids), false)
          and not coalesce(e.line_id = any (e.budget_ids), false))
