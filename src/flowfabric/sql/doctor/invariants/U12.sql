-- Every suspension and every waitpoint has its execution.
--
-- The engine writes both under the lock of the execution, and deletes them together with the
-- execution. The token of a waitpoint that is left over is still accepted. A suspension that is
-- left over has no effect. Signals are not checked: a sender stores a signal without the lock of
-- the execution, so the execution may be trimmed before the sender commits.
--
-- Holds:   always
-- Reads:   everything
-- Remedy:  An execution was deleted by hand: restore it from a backup, or delete the rows of its id
--          from ff.suspension, ff.waitpoint and ff.signal.
select 'U12' as name, s.partition_key, s.execution_id,
       format('suspension %s without an execution', s.suspension_id) as problem
from ff.suspension s
where not exists (
  select from ff.execution e
  where e.partition_key = s.partition_key and e.execution_id = s.execution_id)
union all
select 'U12', w.partition_key, w.execution_id,
       format('waitpoint %s without an execution', w.waitpoint_id)
from ff.waitpoint w
where not exists (
  select from ff.execution e
  where e.partition_key = w.partition_key and e.execution_id = w.execution_id)
