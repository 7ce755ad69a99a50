-- Executions with all their data. The failure belongs to the latest attempt. It is hidden after a
-- replay, until the next attempt starts. An execution that expired at its deadline has the failure
-- category execution_deadline.
create or replace view ff.execution_view as
select e.partition_key, e.execution_id, e.namespace, r.lane, r.task, r.capabilities,
       9000 - e.rank as priority,
       e.public_state::text, e.phase::text, e.ownership::text, e.eligibility::text,
       e.blocking_reason::text, e.blocking_detail, e.outcome::text, e.attempt_state::text,
       e.cause::text, e.version, e.epoch,
       e.attempt_index, e.attempt_id, e.attempt_type::text, e.total_attempt_count,
       e.retry_count, e.replay_count, e.reclaim_count, e.max_reclaims,
       e.lease_id, e.worker_id, e.worker_instance_id, e.lease_expires_at,
       e.created_at, e.started_at, e.terminal_at, e.transitioned_at, e.mutated_at,
       e.delayed_until, e.reclaim_at, e.deadline_at, e.attempt_deadline_at,
       case when e.attempt_state <> 'pending_replay_attempt' then e.failure_class::text end
         as failure_class,
       case when e.cause = 'expire' then 'execution_deadline'
            when e.attempt_state <> 'pending_replay_attempt' then e.failure_category end
         as failure_category,
       case when e.attempt_state <> 'pending_replay_attempt' then e.failure_reason end
         as failure_reason,
       case when e.attempt_state <> 'pending_replay_attempt' then e.failure_detail end
         as failure_detail,
       e.payload_encoding, coalesce(e.payload, b.payload) as payload,
       e.result_encoding, e.result, b.policy::text, b.tags::text, b.creator, e.flow_id,
       e.cancellation_reason, e.cancelled_by, e.progress_percent, e.progress_message,
       e.progressed_at, e.blocked_at, e.retention, e.trim_at, e.due_at, e.attempt_started_at,
       e.attempt_paused_at, e.attempt_pause_cause, e.attempt_time_left, e.instance_tag,
       e.crash_count >= 2 and e.phase <> 'terminal' as is_crash_loop, b.task_version, e.parent_id,
       e.ends_with_parent, e.wait_no, e.wait_left, e.wakes_pending, b.trace_context,
       (select count(*) from ff.execution c
        where c.partition_key = e.partition_key and c.parent_id = e.execution_id) as child_count,
       (select count(*) from ff.step s
        where s.partition_key = e.partition_key and s.execution_id = e.execution_id) as step_count,
       (select k.key from ff.idempotency_key k
        where k.partition_key = e.partition_key and k.execution_id = e.execution_id
          and k.execution_id > '00000000-0000-0000-0000-000000000000'
        limit 1) as key,
       r.code_version,
       coalesce(b.generation, 0) as generation,
       nullif(
         coalesce((
           select jsonb_agg(jsonb_build_object('kind', 'quota', 'name', g.quota, 'key', g.key)
                            order by g.quota collate "C", g.key collate "C")
           from ff.gate g
           where g.partition_key = e.partition_key and g.gate_id = any (e.quota_ids)), '[]')
         || coalesce((
           select jsonb_agg(jsonb_build_object('kind', 'budget', 'name', x.budget, 'key', x.key)
                            order by x.budget collate "C", x.key collate "C")
           from ff.budget x
           where x.budget_id = any (e.budget_ids)), '[]'),
         '[]')::text as limits
from ff.execution e
join ff.route r on r.route_id = e.route_id
left join ff.execution_body b
  on b.partition_key = e.partition_key and b.execution_id = e.execution_id;
