-- The public state follows from the row.
--
-- public_state is a generated column, so only a changed definition of the table can make it
-- differ.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Compare the definition of ff.execution with the definition that `flowfabric db sql`
--          prints.
select 'S07' as name, e.partition_key, e.execution_id,
       format('public state %s, but the row implies %s', e.public_state, d.public_state) as problem
from ff.execution e
cross join lateral (
  select case
      when e.phase = 'terminal' and e.outcome = 'success' then 'completed'
      when e.phase = 'terminal' and e.outcome = 'none' then 'failed'
      when e.phase = 'terminal' then e.outcome::text
      when e.phase in ('suspended', 'active') then e.phase::text
      when e.eligibility = 'not_eligible_until_time' then 'delayed'
      when e.eligibility = 'blocked_by_dependencies' then 'waiting_children'
      when e.eligibility in ('blocked_by_budget', 'blocked_by_quota') then 'rate_limited'
      else 'waiting'
    end as public_state) d
where e.public_state::text <> d.public_state
