-- A cancelled, expired or skipped execution has no open waitpoint. If a waitpoint belongs to an
-- approval, the approval exists.
--
-- A handler that returns or fails may leave waitpoints open. These are harmless: their tokens are
-- refused, because the execution has ended.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `select ff.close_waitpoint(…)` for the waitpoint; then report a bug.
select 'U03' as name, w.partition_key, w.execution_id,
       format('waitpoint %s is open, but the execution has ended', w.waitpoint_id) as problem
from ff.waitpoint w
join ff.execution e on e.partition_key = w.partition_key and e.execution_id = w.execution_id
where w.closed_at is null and e.phase = 'terminal'
  and e.outcome in ('cancelled', 'expired', 'skipped')
union all
select 'U03', w.partition_key, w.execution_id,
       format('waitpoint %s belongs to approval %s, which does not exist', w.waitpoint_id,
              w.approval_id)
from ff.waitpoint w
left join ff.approval a
  on a.partition_key = w.partition_key and a.execution_id = w.execution_id
    and a.approval_id = w.approval_id
where w.approval_id is not null and a.approval_id is null
