-- Exactly what is active is owned.
--
-- An execution has an owner, or had one that lost its lease, as long as it is active. Otherwise a
-- worker could go on with what somebody else may claim.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Revoke the lease or cancel the execution, then replay it.
select 'S02' as name, e.partition_key, e.execution_id,
       format('ownership %s does not fit phase %s', e.ownership, e.phase) as problem
from ff.execution e
where (e.phase = 'active') = (e.ownership = 'unowned')
