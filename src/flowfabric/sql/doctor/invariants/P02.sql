-- A due schedule soon fires.
--
-- Any worker of the app fires a due schedule. Unless the worker's process is overloaded, this takes
-- at most a second. A schedule whose lane is draining or disabled waits, and is not reported.
--
-- Holds:   soon, within 60 s. A finding is a warning. It is an error after 10 min, but only if
--          a live worker knows the task
-- Reads:   the database
-- Remedy:  Start a worker of the app, or read the logs of the running workers.
select 'P02' as name, null::smallint as partition_key, null::uuid as execution_id,
       format('schedule %s of %s was due at %s', s.name, s.app, s.next_at) as problem,
       s.next_at < t.now - interval '10 min' and w.worker_instance_id is not null as is_stuck
from ff.schedule s
cross join (select ff.now() as now offset 0) t
join ff.route r on r.route_id = s.route_id
join ff.lane l on l.namespace = r.namespace and l.lane = r.lane
  and l.state not in ('draining', 'disabled')
left join lateral (
  select x.worker_instance_id from ff.worker x
  where x.heartbeat_at + x.liveness_ttl > t.now
    and x.namespace in ('', s.namespace)
    and (x.tasks is null or r.task = any (x.tasks))
  limit 1
) w on true
where s.state = 'active' and s.next_at < t.now - interval '60 s'
