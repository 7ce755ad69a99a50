-- If the answer of a wait was taken, the waitpoints of the wait are closed, so that their tokens
-- are refused.
--
-- A token answers one wait. After the answer was taken, the token must not answer again.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `select ff.close_waitpoint(…)` for the waitpoint; then report a bug.
select 'U04' as name, s.partition_key, s.execution_id,
       format('wait %s#%s was taken, but its waitpoint %s is open', s.name, s.occurrence,
              w.waitpoint_id) as problem
from ff.step s
cross join lateral jsonb_path_query(
  s.condition, 'strict $.**.waitpoint ? (@.type() == "string")', silent => true) p(id)
join ff.waitpoint w
  on w.partition_key = s.partition_key and w.execution_id = s.execution_id
    and w.waitpoint_id = (p.id #>> '{}')::uuid
where s.kind = 'wait' and s.taken_as is not null and w.closed_at is null
