-- An execution is owned exactly while it is active.
--
-- An active execution has an owner, or had an owner that lost its lease. If a waiting execution had
-- an owner, two workers could run it at once.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Revoke the lease or cancel the execution, then replay it.
select 'S02' as name, e.partition_key, e.execution_id,
       format('ownership %s does not match phase %s', e.ownership, e.phase) as problem
from ff.execution e
where (e.phase = 'active') = (e.ownership = 'unowned')
