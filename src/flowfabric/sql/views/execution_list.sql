-- Executions without payload and result, for lists. The failure belongs to the latest attempt. It
-- is hidden after a replay, until the next attempt starts.
create or replace view ff.execution_list as
select e.partition_key, e.execution_id, e.namespace, r.lane, r.task, 9000 - e.rank as priority,
       e.public_state::text, e.blocking_reason::text, e.attempt_index, e.total_attempt_count,
       e.retry_count, e.reclaim_count, e.worker_instance_id, e.created_at, e.started_at,
       e.terminal_at, e.delayed_until,
       case when e.attempt_state <> 'pending_replay_attempt' then e.failure_reason end
         as failure_reason,
       e.flow_id, e.phase::text, e.ownership::text,
       e.eligibility::text, e.outcome::text, e.attempt_state::text, e.blocking_detail, e.version,
       e.replay_count, e.max_reclaims, e.lease_expires_at, e.reclaim_at, e.deadline_at, e.due_at,
       e.cancellation_reason, e.cancelled_by, e.progress_percent, e.blocked_at, e.trim_at,
       e.crash_count >= 2 and e.phase <> 'terminal' as is_crash_loop
from ff.execution e
join ff.route r on r.route_id = e.route_id;
