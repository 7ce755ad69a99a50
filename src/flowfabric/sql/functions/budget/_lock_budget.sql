-- Lock a budget and return it. Refuse the call if the name or the key is not valid, or if the
-- budget does not exist.
drop function if exists ff._lock_budget;
create function ff._lock_budget(p_namespace text, p_budget text, p_key text)
returns ff.budget
language plpgsql
as $$
declare
  v_problem constant text[] := ff._gate_name_problem('budget', p_namespace, p_budget, p_key);
  v_budget  ff.budget;
begin
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  select b.* into v_budget from ff.budget b
  where b.namespace = p_namespace and b.budget = p_budget and b.key = p_key
  for no key update;
  if not found then
    perform ff._refuse('WF307', 'budget_not_found',
                       jsonb_build_object('budget', p_budget, 'key', p_key));
  end if;
  return v_budget;
end;
$$;
