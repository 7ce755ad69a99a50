-- The history of attempts has no gap, and its length matches the number of attempts.
--
-- The latest attempt is on the row of the execution. Earlier attempts are in ff.attempt, the
-- history, numbered from 0.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  None is needed for the engine to continue. The events tell what the missing attempt
--          did.
select 'L01' as name, e.partition_key, e.execution_id,
       format('%s attempts in the history, numbered %s to %s, of an execution with %s attempts',
              coalesce(h.number, 0), h.lowest + 1, h.highest + 1, e.total_attempt_count) as problem
from ff.execution e
left join (
  select a.partition_key, a.execution_id, count(*) as number,
         min(a.attempt_index) as lowest, max(a.attempt_index) as highest
  from ff.attempt a
  group by a.partition_key, a.execution_id
) h on h.partition_key = e.partition_key and h.execution_id = e.execution_id
where coalesce(h.number, 0) <> greatest(e.total_attempt_count - 1, 0)
   or h.lowest <> 0 or h.highest <> h.number - 1
