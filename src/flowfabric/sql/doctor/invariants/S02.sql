-- The ownership of an execution is `unowned` if and only if the execution is not active.
--
-- An active execution is leased, or has lost its lease and waits for another worker to reclaim it.
-- If an execution in another phase had a lease, two workers could run it at the same time.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Revoke the lease or cancel the execution, then replay it.
select 'S02' as name, e.partition_key, e.execution_id,
       format('ownership %s does not match phase %s', e.ownership, e.phase) as problem
from ff.execution e
where (e.phase = 'active') = (e.ownership = 'unowned')
