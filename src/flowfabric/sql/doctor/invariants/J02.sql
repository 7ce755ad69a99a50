-- No step is missing before another.
--
-- A step says which one was the last that its run knew to be recorded. It is there as long as the
-- step is: a replay from a step forgets that one and all behind it. Without it a later run would do
-- again what was done.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Restore the step from a backup before the execution goes on; or `flowfabric replay <id>
--          --from-step` the one before the gap, if its effects and those behind it may be repeated.
select 'J02' as name, s.partition_key, s.execution_id,
       format('step %s#%s at %s follows one at %s, which is not there', s.name, s.occurrence,
              s.position, s.follows) as problem
from ff.step s
where s.follows >= 0
  and (s.follows > s.position or not exists (
    select from ff.step x
    where x.partition_key = s.partition_key and x.execution_id = s.execution_id
      and x.position = s.follows))
