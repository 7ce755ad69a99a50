-- No lease id is used twice for one execution, and every live lease is on the row of its
-- execution.
--
-- In one execution, a lease id names one period in which one worker had the lease. While the lease
-- is live, or expired and not yet reclaimed, its id is in the column lease_id. Later the id is in
-- the column last_lease_id, and after that in the history of attempts (ff.attempt). The id is
-- never in two of these places.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Two workers may have run the same attempt: compare their effects outside the database.
--          Revoke the lease if it is live.
select 'L02' as name, e.partition_key, e.execution_id,
       format('%s with lease %s until %s', e.ownership, coalesce(e.lease_id::text, 'none'),
              coalesce(e.lease_expires_at::text, 'no time')) as problem
from ff.execution e
where (e.ownership in ('leased', 'lease_expired_reclaimable'))
      <> (e.lease_id is not null and e.lease_expires_at is not null)
union all
select 'L02', e.partition_key, e.execution_id,
       format('lease %s is both the current lease and the last ended lease', e.lease_id)
from ff.execution e
where e.lease_id = e.last_lease_id
union all
select 'L02', a.partition_key, a.execution_id,
       format('lease %s of attempt %s is on the execution again', a.last_lease_id,
              a.attempt_index + 1)
from ff.attempt a
join ff.execution e on e.partition_key = a.partition_key and e.execution_id = a.execution_id
where a.last_lease_id in (e.lease_id, e.last_lease_id)
union all
select 'L02', a.partition_key, a.execution_id,
       format('lease %s belongs to %s ended attempts', a.last_lease_id, count(*))
from ff.attempt a
where a.last_lease_id is not null
group by a.partition_key, a.execution_id, a.last_lease_id
having count(*) > 1
