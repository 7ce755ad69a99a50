-- Reset a budget now. Its usage becomes 0, and executions that wait for the budget can start.
--
-- The counts of breaches stay; the time of the last breach is cleared. The call does not change the
-- time of the next regular reset.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF307 budget_not_found
-- Locks:    the budget, then its lines, waiting up to 2 s
-- Repeat:   resets again
-- Rights:   app
drop function if exists ff.reset_budget;
create function ff.reset_budget(
  p_namespace text,
  p_budget    text,
  p_key       text default null,
  p_reason    text default null,
  p_actor     text default null
)
returns table (outcome text, next_reset_at timestamptz)
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
  perform ff._reset_budget(v_budget.budget_id, v_now);
  update ff.budget b set changed_by = p_actor, changed_at = v_now, reason = p_reason
  where b.budget_id = v_budget.budget_id;
  perform ff._write_audit(p_namespace, p_actor, 'reset_budget', concat_ws(' ', p_budget, nullif(p_key, '')), p_reason);
  return query
  select 'reset', b.next_reset_at from ff.budget b where b.budget_id = v_budget.budget_id;
end;
$$;
