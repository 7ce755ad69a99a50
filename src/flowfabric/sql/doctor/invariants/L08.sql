-- An attempt ends once, and its record says how.
--
-- The latest attempt has an end if and only if the execution has ended or waits for a new attempt.
-- An attempt in the history (ff.attempt) always has an end, which is not before its start.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  If the execution is unfinished, cancel it and replay it.
select 'L08' as name, e.partition_key, e.execution_id,
       format('%s, %s attempts, the latest ended at %s as %s', e.attempt_state,
              e.total_attempt_count, coalesce(e.attempt_ended_at::text, 'no time'),
              coalesce(e.attempt_ended_as::text, 'nothing')) as problem
from ff.execution e
where (e.attempt_ended_at is null) <> (e.attempt_ended_as is null)
   or (e.attempt_ended_at is not null) <> (
        e.total_attempt_count > 0 and e.attempt_state in (
          'attempt_terminal', 'pending_retry_attempt', 'pending_replay_attempt'))
union all
select 'L08', a.partition_key, a.execution_id,
       format('attempt %s, started %s, ended %s as %s', a.attempt_index + 1, a.started_at,
              a.ended_at, a.ended_as)
from ff.attempt a
where a.ended_at < a.started_at
   or a.ended_as not in (
     'ended_success', 'ended_failure', 'ended_cancelled', 'interrupted_reclaimed')
