-- The history of attempts has no gap and is as long as the count says.
--
-- The latest attempt lives on the execution; those before it are in ff.attempt, numbered from 0.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  The engine goes on without it; what the lost attempt did is still in the events.
select 'L01' as name, e.partition_key, e.execution_id,
       format('%s attempts in the history, numbered %s to %s, of an execution with %s',
              coalesce(h.number, 0), h.lowest, h.highest, e.total_attempt_count) as problem
from ff.execution e
left join (
  select a.partition_key, a.execution_id, count(*) as number,
         min(a.attempt_index) as lowest, max(a.attempt_index) as highest
  from ff.attempt a
  group by a.partition_key, a.execution_id
) h on h.partition_key = e.partition_key and h.execution_id = e.execution_id
where coalesce(h.number, 0) <> greatest(e.total_attempt_count - 1, 0)
   or h.lowest <> 0 or h.highest <> h.number - 1
