-- A lease is complete or absent.
--
-- If the execution is leased, or its lease has expired and nobody has reclaimed the execution yet,
-- four columns are set: lease_id, lease_expires_at, worker_id and worker_instance_id. An attempt
-- exists too. In every other state none of the four columns is set.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Revoke the lease; the next claim makes a new one.
select 'S04' as name, e.partition_key, e.execution_id,
       format('%s with %s of the 4 lease columns%s', e.ownership,
              num_nonnulls(e.lease_id, e.lease_expires_at, e.worker_id, e.worker_instance_id),
              case when e.attempt_id is null then ' and no attempt' end) as problem
from ff.execution e
where num_nonnulls(e.lease_id, e.lease_expires_at, e.worker_id, e.worker_instance_id)
      <> case when e.ownership in ('leased', 'lease_expired_reclaimable') then 4 else 0 end
   or (e.ownership in ('leased', 'lease_expired_reclaimable') and e.attempt_id is null)
