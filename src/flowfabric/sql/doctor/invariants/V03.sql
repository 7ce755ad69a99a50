-- An open stream belongs to the live lease of its execution.
--
-- Every function that ends a lease closes the stream, so that no frame follows the end of the
-- lease.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `flowfabric cancel <id>` closes the stream; then report a bug.
select 'V03' as name, s.partition_key, s.execution_id,
       format('its stream is open for lease %s, but the execution is %s with lease %s',
              s.lease_id, e.ownership, e.lease_id) as problem
from ff.execution e
join ff.stream s on s.partition_key = e.partition_key and s.execution_id = e.execution_id
where s.lease_id is not null
  and (e.ownership <> 'leased' or e.lease_id is distinct from s.lease_id)
