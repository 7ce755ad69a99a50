-- Report usage to one budget. The usage belongs to no execution.
--
-- Dimensions and amounts are parallel arrays. An amount is a whole number, at least 0.
--
-- The outcomes are: ok (applied) · soft_breach (applied, and above a soft limit) · hard_breach
-- (nothing applied) · already_applied (a report with the same p_dedup_key was applied in the last
-- 24 hours; the detail has the outcome of that report as `first`).
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF307 budget_not_found
-- Locks:    the budget, then its lines, waiting up to 2 s
-- Repeat:   `already_applied` for 24 hours if p_dedup_key is given and the first call was applied;
--           otherwise the usage is reported again
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
