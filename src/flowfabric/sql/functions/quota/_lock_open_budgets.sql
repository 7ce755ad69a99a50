-- Lock the budgets in p_budget_ids that are not shut, and return their ids. A null namespace means
-- all namespaces. Budgets that another transaction has locked are skipped.
drop function if exists ff._lock_open_budgets;
create function ff._lock_open_budgets(p_budget_ids bigint[], p_namespace text)
returns bigint[]
language plpgsql
as $$
begin
  return array(
    select b.budget_id from ff.budget b
    where b.budget_id = any (p_budget_ids) and not b.is_shut
      and (p_namespace is null or b.namespace = p_namespace)
    order by b.budget_id
    for no key update skip locked);
end;
$$;
