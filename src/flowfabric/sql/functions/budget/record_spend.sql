-- Report usage of one execution to one budget, so that ff.release_budget can take the usage back.
--
-- This works like ff.report_usage_admin, and also adds the applied amounts to the ledger under
-- p_execution_id. The execution need not exist.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF307 budget_not_found
-- Locks:    the budget, then its lines, waiting up to 2 s
-- Repeat:   `already_applied` for 24 hours if p_dedup_key is given and the first call was applied;
--           otherwise the usage is reported again
-- Rights:   app
drop function if exists ff.record_spend;
create function ff.record_spend(
  p_namespace    text,
  p_budget       text,
  p_key          text,
  p_execution_id uuid,
  p_dimensions   text[],
  p_amounts      bigint[],
  p_dedup_key    text default null
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
  if p_execution_id is null or ff._is_nil_id(p_execution_id) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'execution_id', 'problem', 'must be a uuid other than the nil uuid'));
  end if;
  return query
  select c.answer ->> 'outcome', nullif(c.answer - 'outcome' - 'budget_id', '{}')
  from ff._report_usage(p_namespace, p_budget, p_key, p_dimensions, p_amounts, p_dedup_key,
                        p_execution_id) c(answer);
end;
$$;
