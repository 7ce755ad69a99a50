-- No attempt appears twice.
--
-- An attempt is on the row of the execution or in the history (ff.attempt), never in both, and
-- never twice in the history.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  If the execution is unfinished, cancel it and replay it: the next claim starts a new
--          attempt.
select 'L03' as name, a.partition_key, a.execution_id,
       format('attempt id %s of attempt %s is on the execution, too', a.attempt_id,
              a.attempt_index + 1) as problem
from ff.attempt a
join ff.execution e on e.partition_key = a.partition_key and e.execution_id = a.execution_id
where a.attempt_id = e.attempt_id
union all
select 'L03', a.partition_key, a.execution_id,
       format('attempt id %s belongs to %s ended attempts', a.attempt_id, count(*))
from ff.attempt a
group by a.partition_key, a.execution_id, a.attempt_id
having count(*) > 1
