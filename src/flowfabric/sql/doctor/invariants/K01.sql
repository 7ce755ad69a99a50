-- Only ended executions are trimmed, and at the right time.
--
-- trim_at is the end plus the execution's own retention. The marks of the trimmers in ff.meta are
-- readable: the highest transaction trimmed, and the position of the walk over all rows.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  For an execution: replay it, or wait; the walk over all rows uses the end itself. For a
--          mark: delete it from ff.meta; the walk starts again, old cursors may not notice a gap.
select 'K01' as name, e.partition_key, e.execution_id,
       format('%s, ended at %s, kept for %s, to be trimmed at %s', e.phase,
              coalesce(e.terminal_at::text, 'no time'),
              coalesce(e.retention::text, 'the usual time'),
              coalesce(e.trim_at::text, 'no time')) as problem
from ff.execution e
where e.trim_at is distinct from case when e.phase = 'terminal' then e.terminal_at + e.retention end
union all
select 'K01', null, null, format('%s is %s', m.name, m.value)
from ff.meta m
where (starts_with(m.name, 'trimmed_xid:') and m.value !~ '^[0-9]{1,19}$')
   or (starts_with(m.name, 'trim_position:') and m.value !~ '^([0-9a-f-]{36})?$')
