-- Unless a budget only warns, it is shut if and only if one of its dimensions has reached its hard
-- limit.
--
-- The amounts of refused reports count as usage here. A budget that only warns is never shut. A
-- budget is shut or opened by a report of usage, by a call of an operator, or by its reset. Claims
-- only read whether the budget is shut.
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
