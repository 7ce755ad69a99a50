-- Lock those of these budgets that are not shut, skipping locked ones, and return their ids.
drop function if exists ff._lock_open_budgets;
create function ff._lock_open_budgets(p_budget_ids bigint[])
returns bigint[]
language plpgsql
as $$
begin
  return array(
    select b.budget_id from ff.budget b
    where b.budget_id = any (p_budget_ids) and not b.is_shut
    order by b.budget_id
    for no key update skip locked);
end;
$$;
