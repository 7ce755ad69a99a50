-- Set the hard limits of some dimensions of a budget. The new limits replace the declared hard
-- limits of these dimensions until ff.lift_budget is called.
--
-- A new limit can also be lower than the old one. The usage stays. The counts of refused usage are
-- cleared in all dimensions. If the usage is now below every hard limit, executions that wait for
-- the budget can start.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF307 budget_not_found
-- Locks:    the budget, then its lines, waiting up to 2 s
-- Repeat:   sets the same limits again, and writes the audit again
-- Rights:   app
drop function if exists ff.raise_budget;
create function ff.raise_budget(
  p_namespace   text,
  p_budget      text,
  p_key         text,
  p_dimensions  text[],
  p_hard_limits bigint[],
  p_reason      text default null,
  p_actor       text default null
)
returns table (outcome text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_budget  ff.budget;
  v_problem text[];
  v_before  jsonb;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  v_problem := ff._budget_problem(p_dimensions, p_hard_limits, null, null, null, null, 'fail');
  if v_problem is null and array_position(p_hard_limits, null) is not null then
    v_problem := array['hard_limits', 'must be at least 1'];
  end if;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_budget := ff._lock_budget(p_namespace, p_budget, coalesce(p_key, ''));
  v_now := ff.now();
  v_before := (
    select jsonb_object_agg(d.dimension, coalesce(d.raised_hard, d.declared_hard))
    from ff.budget_dimension d
    where d.budget_id = v_budget.budget_id and d.dimension = any (p_dimensions));
  insert into ff.budget_dimension as d (budget_id, dimension, raised_hard)
  select v_budget.budget_id, u.dimension, u.hard
  from unnest(p_dimensions, p_hard_limits) u(dimension, hard)
  order by u.dimension
  on conflict (budget_id, dimension) do update set raised_hard = excluded.raised_hard;
  update ff.budget_dimension d set refused = 0
  where d.budget_id = v_budget.budget_id and d.refused > 0;
  update ff.budget b set changed_by = p_actor, changed_at = v_now, reason = p_reason
  where b.budget_id = v_budget.budget_id;
  perform ff._shut_budget(v_budget.budget_id);
  perform ff._write_audit(
    p_namespace, p_actor, 'raise_budget', concat_ws(' ', p_budget, nullif(p_key, '')), p_reason, v_before,
    (select jsonb_object_agg(u.dimension, u.hard)
     from unnest(p_dimensions, p_hard_limits) u(dimension, hard)));
  outcome := 'raised';
  return next;
end;
$$;
