-- A suspended execution has exactly one open suspension, which its row names. Any other execution
-- has none.
--
-- The open suspension says what wakes the execution, and when. If there were no open suspension,
-- nothing would wake the execution.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `flowfabric cancel <id>`, then `flowfabric replay <id>`: the handler waits again.
select 'U01' as name, e.partition_key, e.execution_id,
       format('suspended, with %s open suspensions; the current one is %s', o.number,
              e.suspension_id) as problem
from ff.execution e
cross join lateral (
  select count(*) as number, count(*) filter (where s.suspension_id = e.suspension_id) as current
  from ff.suspension s
  where s.partition_key = e.partition_key and s.execution_id = e.execution_id
    and s.closed_at is null
) o
where e.public_state = 'suspended' and (o.number <> 1 or o.current <> 1)
union all
select 'U01', s.partition_key, s.execution_id,
       format('suspension %s is open, but the execution is %s', s.suspension_id, e.phase)
from ff.execution e
join ff.suspension s on s.partition_key = e.partition_key and s.execution_id = e.execution_id
where s.closed_at is null and e.phase <> 'suspended'
