-- Epochs rise from attempt to attempt.
--
-- Outside systems compare epochs to tell an old holder from the current holder. Each lease has a
-- higher epoch than all earlier leases of the execution. This check compares the epochs of
-- attempts; O02 compares the epochs of events. Every attempt begins with a new lease, so the epoch
-- of the execution is at least the number of its attempts.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  An outside system that compares ctx.epoch may have accepted a call of an old holder:
--          check the effects of that call.
select 'L05' as name, a.partition_key, a.execution_id,
       format('epoch %s of attempt %s is followed by %s', a.epoch, a.attempt_index + 1,
              a.next_epoch) as problem
from (
  select x.partition_key, x.execution_id, x.attempt_index, x.epoch,
         coalesce(lead(x.epoch) over (
           partition by x.partition_key, x.execution_id order by x.attempt_index),
           e.epoch) as next_epoch
  from ff.attempt x
  left join ff.execution e
    on e.partition_key = x.partition_key and e.execution_id = x.execution_id
) a
where a.next_epoch <= a.epoch
union all
select 'L05', e.partition_key, e.execution_id,
       format('epoch %s after %s attempts', e.epoch, e.total_attempt_count)
from ff.execution e
where e.epoch < e.total_attempt_count
