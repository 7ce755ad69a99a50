-- An execution has the right trim_at, the time at which it will be trimmed.
--
-- trim_at is the end of the execution plus the retention that its policy sets. trim_at is null
-- until the execution has ended, and stays null if the policy sets no retention.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Replay the execution if it has ended: its next end sets trim_at again.
select 'K01' as name, e.partition_key, e.execution_id,
       format('%s, ended at %s, kept for %s, to be trimmed at %s', e.phase,
              coalesce(e.terminal_at::text, 'no time'),
              coalesce(e.retention::text, 'the usual time'),
              coalesce(e.trim_at::text, 'no time')) as problem
from ff.execution e
where e.trim_at is distinct from case when e.phase = 'terminal' then e.terminal_at + e.retention end
