-- Every registration of a worker instance is valid.
--
-- A worker was registered no later than its last heartbeat, and has a positive liveness_ttl.
-- worker_id and worker_instance_id are not empty. The lanes, tasks and capabilities of the worker
-- contain no null.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  `select ff.mark_worker_dead(…)` for the worker. A live worker registers again with its
--          next heartbeat.
select 'W01' as name, null::smallint as partition_key, null::uuid as execution_id,
       format('worker %s of %s: registered %s, heartbeat %s, alive for %s', w.worker_instance_id,
              case w.namespace when '' then 'all namespaces' else w.namespace end, w.registered_at,
              w.heartbeat_at, w.liveness_ttl) as problem
from ff.worker w
where w.heartbeat_at < w.registered_at or w.liveness_ttl <= interval '0'
   or w.worker_instance_id = '' or w.worker_id = ''
   or array_position(w.lanes, null) is not null or array_position(w.tasks, null) is not null
   or array_position(w.capabilities, null) is not null
