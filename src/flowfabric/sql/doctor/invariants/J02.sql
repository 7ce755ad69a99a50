-- No step is missing from a journal.
--
-- The column `follows` of a step is the position of the step that had been recorded last when this
-- step started. A step must exist at that position, because a replay deletes a step only together
-- with all later steps. If a step were missing, a later run of the handler would repeat its work.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Restore the step from a backup before the execution continues. Or run `flowfabric replay
--          <id> --from-step <name>`, with the name of the step before the missing one. This repeats
--          that step and all later steps: do it only if it is safe to repeat their effects.
select 'J02' as name, s.partition_key, s.execution_id,
       format('step %s#%s at %s follows a step at %s, which does not exist', s.name, s.occurrence,
              s.position, s.follows) as problem
from ff.step s
where s.follows >= 0
  and (s.follows > s.position or not exists (
    select from ff.step x
    where x.partition_key = s.partition_key and x.execution_id = s.execution_id
      and x.position = s.follows))
