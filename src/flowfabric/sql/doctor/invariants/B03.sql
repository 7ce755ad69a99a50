-- In the current period, the usage of a budget is at least the sum of the amounts in its ledger.
--
-- ff.record_spend adds an amount to the ledger and to the usage in one transaction.
-- ff.release_budget takes an amount of the current period back from both.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  `flowfabric budget reset` starts a new period.
select 'B03' as name, null::smallint as partition_key, null::uuid as execution_id,
       format('budget %s, key %s: executions spent %s of %s, but %s is used', b.budget,
              coalesce(nullif(b.key, ''), 'none'), l.amount, l.dimension, coalesce(d.usage, 0))
         as problem
from (
  select x.budget_id, x.dimension, x.period_no, sum(x.amount) as amount
  from ff.budget_ledger x group by x.budget_id, x.dimension, x.period_no) l
join ff.budget b on b.budget_id = l.budget_id and b.period_no = l.period_no
left join ff.budget_dimension d on d.budget_id = l.budget_id and d.dimension = l.dimension
where l.amount > coalesce(d.usage, 0)
