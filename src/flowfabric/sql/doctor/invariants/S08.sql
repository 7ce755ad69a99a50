-- The times of an execution are in order.
--
-- An execution does not start, change its state or end before its creation. It does not end before
-- it starts. Its last change is not before its last transition. Its latest attempt does not start
-- before the execution, does not end before it starts, and does not start after its lease expires.
-- An execution has a start time if and only if it has an attempt. The engine never writes a time
-- before the last transition of the row, even if the server's clock was set back.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  None is needed for the engine to continue; find out who wrote the row.
select 'S08' as name, e.partition_key, e.execution_id,
       format('created %s, started %s, attempt %s to %s, moved %s, changed %s, ended %s',
              e.created_at, e.started_at, e.attempt_started_at, e.attempt_ended_at,
              e.transitioned_at, e.mutated_at, e.terminal_at) as problem
from ff.execution e
where e.started_at < e.created_at
   or e.transitioned_at < e.created_at
   or e.mutated_at < e.transitioned_at
   or e.terminal_at < coalesce(e.started_at, e.created_at)
   or e.attempt_started_at < e.started_at
   or e.attempt_ended_at < e.attempt_started_at
   or e.lease_expires_at < e.attempt_started_at
   or (e.started_at is null) <> (e.total_attempt_count = 0)
