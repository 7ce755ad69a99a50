-- Correct next_reset_at of budgets after the clock went back. If the next_reset_at of a budget is
-- later than the end of its present period, set next_reset_at to that end. The caller has locked
-- the budgets.
drop function if exists ff._correct_resets;
create function ff._correct_resets(p_budget_ids bigint[], p_now timestamptz)
returns void
language plpgsql
as $$
declare
  v_budget record;
  v_at     timestamptz;
begin
  for v_budget in
    select b.budget_id, b.period, b.period_zone, b.period_length, b.created_at, b.next_reset_at
    from ff.budget b
    where b.budget_id = any (p_budget_ids) and b.next_reset_at is not null
  loop
    v_at := ff._next_reset(v_budget.period, v_budget.period_zone, v_budget.period_length,
                           v_budget.created_at, p_now);
    if v_budget.next_reset_at > v_at then
      update ff.budget b set next_reset_at = v_at where b.budget_id = v_budget.budget_id;
    end if;
  end loop;
end;
$$;
