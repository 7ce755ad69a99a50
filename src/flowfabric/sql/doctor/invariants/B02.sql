-- A budget is shut if and only if, in at least one dimension, its usage and the amounts of refused
-- reports together reach the hard limit. A budget that only warns is never shut.
--
-- Reports of usage and operators' calls shut and open a budget. Claims only read whether it is
-- shut.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  `flowfabric budget raise` with the present limit shuts or opens the budget, as its usage
--          requires.
select 'B02' as name, null::smallint as partition_key, null::uuid as execution_id,
       format('budget %s, key %s is %s', b.budget, coalesce(nullif(b.key, ''), 'none'),
              case when b.is_shut then 'shut with room left' else 'open without room' end)
         as problem
from ff.budget b
where b.is_shut <> (b.on_exceed <> 'warn' and exists (
  select from ff.budget_dimension d
  where d.budget_id = b.budget_id
    and d.usage::numeric + d.refused >= coalesce(d.raised_hard, d.declared_hard)))
