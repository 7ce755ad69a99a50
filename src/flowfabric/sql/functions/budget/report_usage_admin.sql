-- Report usage to one budget outside an execution.
--
-- Dimensions and amounts are parallel arrays; an amount is a whole number from 0 on. Outcomes: ok ·
-- soft_breach (applied, and above a soft limit) · hard_breach (nothing is applied) · already_applied
-- (an applied report had the same key within 24 hours; the detail has its outcome).
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF307 budget_not_found
-- Locks:    the budget, then its lines, waiting up to 2 s
-- Replay:   already_applied, with a key
-- Rights:   app
drop function if exists ff.report_usage_admin;
create function ff.report_usage_admin(
  p_namespace  text,
  p_budget     text,
  p_key        text,
  p_dimensions text[],
  p_amounts    bigint[],
  p_dedup_key  text default null
)
returns table (outcome text, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  return query
  select c.answer ->> 'outcome', nullif(c.answer - 'outcome' - 'budget_id', '{}')
  from ff._report_usage(p_namespace, p_budget, p_key, p_dimensions, p_amounts, p_dedup_key, null)
    c(answer);
end;
$$;
