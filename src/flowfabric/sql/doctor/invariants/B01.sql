-- The usage of an open budget is within its hard limits, unless the budget only warns.
--
-- Only open budgets are checked. An operator can lower a limit below the usage, but this shuts the
-- budget.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  `flowfabric budget reset` starts a new period.
select 'B01' as name, null::smallint as partition_key, null::uuid as execution_id,
       format('budget %s, key %s: %s used %s of %s, and is open', b.budget,
              coalesce(nullif(b.key, ''), 'none'), d.dimension, d.usage,
              coalesce(d.raised_hard, d.declared_hard)) as problem
from ff.budget b
join ff.budget_dimension d on d.budget_id = b.budget_id
where b.on_exceed <> 'warn' and not b.is_shut
  and d.usage > coalesce(d.raised_hard, d.declared_hard)
