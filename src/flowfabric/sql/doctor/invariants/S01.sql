-- An execution has an outcome and an end time if and only if it has ended.
--
-- Phase, outcome and terminal_at must agree. A CHECK refuses a row in which they disagree. If there
-- is such a row, it was written without the CHECK, or the table is damaged.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Restore the row from a backup. If the execution is unfinished, cancel it and submit it
--          again.
select 'S01' as name, e.partition_key, e.execution_id,
       format('phase %s, outcome %s, ended at %s do not agree', e.phase, e.outcome,
              coalesce(e.terminal_at::text, 'no time')) as problem
from ff.execution e
where (e.phase = 'terminal') <> (e.outcome <> 'none')
   or (e.phase = 'terminal') <> (e.terminal_at is not null)
