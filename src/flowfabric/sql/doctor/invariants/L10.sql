-- An execution that lost its lease is soon reclaimed.
--
-- A lease is lost when it expires or is revoked. The execution is reported if nobody has reclaimed
-- it in time, its lane is active, and a live worker covers its route. A possible cause is that all
-- workers are busy with higher priorities. An execution that crashed several times must wait before
-- its reclaim, and is not reported while it waits.
--
-- Holds:   soon, within 10 min. A finding is always a warning
-- Reads:   the database
-- Remedy:  See what the workers do (`flowfabric events --follow`); raise their concurrency.
select 'L10' as name, e.partition_key, e.execution_id,
       format('%s since %s, though %s is alive', e.ownership, e.transitioned_at,
              w.worker_instance_id) as problem,
       false as is_stuck
from ff.execution e
cross join (select ff.now() as now offset 0) t
join ff.route r on r.route_id = e.route_id
join ff.lane l on l.namespace = r.namespace and l.lane = r.lane
  and l.state = 'active'
cross join lateral (
  select x.worker_instance_id from ff.worker x
  where x.heartbeat_at + x.liveness_ttl > t.now
    and x.namespace in ('', e.namespace)
    and (x.lanes is null or r.lane = any (x.lanes))
    and (x.tasks is null or r.task = any (x.tasks))
    and r.capabilities <@ x.capabilities
    and (r.code_version is null or r.code_version = any (x.code_version || x.reads))
  limit 1
) w
where e.ownership in ('lease_expired_reclaimable', 'lease_revoked') and e.reclaim_at is null
  and e.transitioned_at < t.now - interval '10 min'
