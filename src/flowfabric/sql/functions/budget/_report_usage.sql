-- Check reported usage, and apply the usage to the budget that has the given name and key. Refuse
-- the call if the usage is not valid or the budget does not exist. Return the answer of
-- ff._charge_budgets.
drop function if exists ff._report_usage;
create function ff._report_usage(
  p_namespace    text,
  p_budget       text,
  p_key          text,
  p_dimensions   text[],
  p_amounts      bigint[],
  p_dedup_key    text,
  p_execution_id uuid
)
returns jsonb
language plpgsql
as $$
declare
  v_now     timestamptz;
  v_usage   jsonb;
  v_problem text[];
  v_budget  ff.budget;
  v_answer  jsonb;
begin
  if cardinality(p_dimensions) is distinct from cardinality(p_amounts) then
    v_problem := array['amounts', 'must be one per dimension'];
  elsif cardinality(p_dimensions) <> (select count(distinct d) from unnest(p_dimensions) d) then
    v_problem := array['dimensions', 'must not repeat a dimension'];
  else
    select jsonb_object_agg(coalesce(u.dimension, ''), u.amount) into v_usage
    from unnest(p_dimensions, p_amounts) u(dimension, amount);
    v_problem := ff._usage_problem(v_usage, p_dedup_key);
  end if;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_budget := ff._lock_budget(p_namespace, p_budget, coalesce(p_key, ''));
  perform ff._refresh_budgets(array[v_budget.budget_id]);
  v_now := ff.now();
  v_answer := ff._charge_budgets(
    array[v_budget.budget_id], v_usage, p_dedup_key, p_execution_id, v_now);
  if v_answer ->> 'outcome' = 'invalid' then
    perform ff._refuse('WF001', 'invalid_input', v_answer - 'outcome');
  end if;
  return v_answer;
end;
$$;
