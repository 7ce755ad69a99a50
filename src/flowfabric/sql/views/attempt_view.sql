-- Attempts of executions. Earlier attempts come from ff.attempt, and the latest attempt comes from
-- the row of its execution.
create or replace view ff.attempt_view as
select a.partition_key, a.execution_id, a.attempt_index, a.attempt_id, a.attempt_type::text,
       a.ended_as::text as lifecycle, a.epoch, a.started_at, a.ended_at,
       a.last_worker_id as worker_id, a.last_worker_instance_id as worker_instance_id,
       a.previous_attempt_index, a.attempt_reason, null::timestamptz as paused_at,
       null::text as pause_cause, a.failure_class::text, a.failure_category, a.failure_reason,
       a.failure_detail, a.last_lease_id as lease_id, e.namespace, a.failure_place
from ff.attempt a
join ff.execution e on e.partition_key = a.partition_key and e.execution_id = a.execution_id
union all
select e.partition_key, e.execution_id, e.attempt_index, e.attempt_id, e.attempt_type::text,
       case when e.attempt_ended_as is not null then e.attempt_ended_as::text
            when e.attempt_paused_at is not null then 'suspended' else 'started' end,
       e.epoch, e.attempt_started_at, e.attempt_ended_at,
       coalesce(e.worker_id, e.last_worker_id),
       coalesce(e.worker_instance_id, e.last_worker_instance_id),
       e.previous_attempt_index, e.attempt_reason, e.attempt_paused_at, e.attempt_pause_cause,
       e.failure_class::text, e.failure_category, e.failure_reason, e.failure_detail,
       coalesce(e.lease_id, e.last_lease_id), e.namespace,
       case when e.failure_class is not null then e.failure_place end
from ff.execution e
where e.total_attempt_count > 0;
