-- Every row has the rows that it refers to.
--
-- An execution is in an existing partition and on a registered route. The route is in the
-- namespace of the execution, and the lane of the route exists. The execution of every body and of
-- every ended attempt exists, in the same partition.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  A route or lane comes back when a worker or a client registers it again. A body or an
--          attempt without an execution is left over from a deletion by hand: restore the
--          execution from a backup.
select 'S09' as name, e.partition_key, e.execution_id, 'the partition does not exist' as problem
from ff.execution e
where e.partition_key not between 0 and (
  select m.value::smallint - 1 from ff.meta m where m.name = 'partitions')
union all
select 'S09', a.partition_key, a.execution_id, 'an attempt without an execution'
from ff.attempt a
where not exists (
  select from ff.execution e
  where e.partition_key = a.partition_key and e.execution_id = a.execution_id)
union all
select 'S09', b.partition_key, b.execution_id, 'a body without an execution'
from ff.execution_body b
where not exists (
  select from ff.execution e
  where e.partition_key = b.partition_key and e.execution_id = b.execution_id)
union all
select 'S09', e.partition_key, e.execution_id, 'its route or lane is unknown in its namespace'
from ff.execution e
where not exists (
  select from ff.route r join ff.lane l on l.namespace = r.namespace and l.lane = r.lane
  where r.route_id = e.route_id and r.namespace = e.namespace)
