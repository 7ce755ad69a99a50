-- Executions as a list shows them: no payload, no result.
create or replace view ff.execution_list as
select e.partition_key, e.execution_id, e.namespace, r.lane, r.task, 9000 - e.rank as priority,
       e.public_state::text, e.blocking_reason::text, e.attempt_index, e.total_attempt_count,
       e.retry_count, e.reclaim_count, e.worker_instance_id, e.created_at, e.started_at,
       e.terminal_at, e.delayed_until, e.failure_reason
from ff.execution e
join ff.route r on r.route_id = e.route_id;
