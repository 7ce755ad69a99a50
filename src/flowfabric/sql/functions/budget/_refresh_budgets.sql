-- Lock budgets in id order, waiting for each, and start a new period of each budget whose period
-- has ended. Unknown ids are skipped.
drop function if exists ff._refresh_budgets;
create function ff._refresh_budgets(p_budget_ids bigint[])
returns void
language plpgsql
as $$
declare
  v_due bigint[];
  v_now timestamptz;
begin
  perform 1 from ff.budget b
  where b.budget_id = any (p_budget_ids)
  order by b.budget_id
  for no key update;
  v_now := ff.now();
  perform ff._correct_resets(p_budget_ids, v_now);
  v_due := array(
    select b.budget_id from ff.budget b
    where b.budget_id = any (p_budget_ids) and b.next_reset_at <= v_now
    order by b.budget_id);
  for v_nth in 1..cardinality(v_due) loop
    perform ff._reset_budget(v_due[v_nth], v_now);
  end loop;
end;
$$;
