-- Start a new period of a budget. The usage becomes 0, so executions that wait for the budget can
-- start. The caller has locked the budget.
drop function if exists ff._reset_budget;
create function ff._reset_budget(p_budget_id bigint, p_now timestamptz)
returns void
language plpgsql
as $$
declare
  v_budget  record;
  v_next_at timestamptz;
begin
  select b.period, b.period_zone, b.period_length, b.created_at into v_budget
  from ff.budget b where b.budget_id = p_budget_id;
  v_next_at := ff._next_reset(v_budget.period, v_budget.period_zone, v_budget.period_length,
                              v_budget.created_at, p_now);
  update ff.budget_dimension d set usage = 0, refused = 0
  where d.budget_id = p_budget_id and (d.usage > 0 or d.refused > 0);
  update ff.budget b set
    period_no = b.period_no + 1,
    period_started_at = greatest(p_now, b.period_started_at),
    next_reset_at = v_next_at,
    last_breach_at = null,
    last_breach_dimension = null
  where b.budget_id = p_budget_id;
  perform ff._shut_budget(p_budget_id);
end;
$$;
