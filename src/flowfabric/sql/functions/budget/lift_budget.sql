-- Remove all hard limits that ff.raise_budget has set for dimensions of a budget. In each of these
-- dimensions, the declared limit applies again, and the count of refused usage is cleared.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF307 budget_not_found
-- Locks:    the budget, then its lines, waiting up to 2 s
-- Repeat:   `unchanged`
-- Rights:   app
drop function if exists ff.lift_budget;
create function ff.lift_budget(
  p_namespace text,
  p_budget    text,
  p_key       text default null,
  p_reason    text default null,
  p_actor     text default null
)
returns table (outcome text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now    timestamptz;
  v_budget ff.budget;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  v_budget := ff._lock_budget(p_namespace, p_budget, coalesce(p_key, ''));
  v_now := ff.now();
  update ff.budget_dimension d set raised_hard = null, refused = 0
  where d.budget_id = v_budget.budget_id and d.raised_hard is not null;
  outcome := case when found then 'lifted' else 'unchanged' end;
  if outcome = 'lifted' then
    update ff.budget b set changed_by = p_actor, changed_at = v_now, reason = p_reason
    where b.budget_id = v_budget.budget_id;
    perform ff._shut_budget(v_budget.budget_id);
    perform ff._write_audit(p_namespace, p_actor, 'lift_budget', concat_ws(' ', p_budget, nullif(p_key, '')), p_reason);
  end if;
  return next;
end;
$$;
