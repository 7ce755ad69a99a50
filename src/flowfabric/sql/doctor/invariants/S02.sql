-- An execution has an owner if and only if it is active.
--
-- The owner is the worker that has the lease. After the lease was lost, the execution stays active
-- until another worker reclaims it. If a waiting execution had an owner, two workers could run it
-- at once.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Revoke the lease or cancel the execution, then replay it.
select 'S02' as name, e.partition_key, e.execution_id,
       format('ownership %s does not match phase %s', e.ownership, e.phase) as problem
from ff.execution e
where (e.phase = 'active') = (e.ownership = 'unowned')
