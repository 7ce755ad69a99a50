-- Read one budget with its limits and usage, in one snapshot. ff.list_budgets explains the columns.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF307 budget_not_found
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.get_budget_status;
create function ff.get_budget_status(
  p_partition_key smallint,
  p_namespace     text,
  p_budget        text,
  p_key           text default null
)
returns table (
  budget_id             bigint,
  namespace             text,
  budget                text,
  key                   text,
  on_exceed             text,
  period                text,
  period_zone           text,
  period_length         interval,
  period_started_at     timestamptz,
  next_reset_at         timestamptz,
  is_shut               boolean,
  usage                 jsonb,
  refused               jsonb,
  hard_limits           jsonb,
  soft_limits           jsonb,
  raised                text[],
  in_line               integer,
  breach_count          bigint,
  soft_breach_count     bigint,
  last_breach_at        timestamptz,
  last_breach_dimension text,
  created_at            timestamptz,
  changed_by            text,
  changed_at            timestamptz,
  reason                text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_problem text[];
begin
  perform ff._check_namespace(p_namespace);
  v_problem := ff._gate_name_problem('budget', p_namespace, p_budget, p_key);
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  return query
  select b.* from ff.list_budgets(
    p_partition_key, p_namespace, p_budget, coalesce(p_key, ''), p_limit => 1) b;
  if not found then
    perform ff._refuse('WF307', 'budget_not_found',
                       jsonb_build_object('budget', p_budget, 'key', coalesce(p_key, '')));
  end if;
end;
$$;
