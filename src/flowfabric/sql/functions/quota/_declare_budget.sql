-- Store the limits that an item of ff.register_gates declares for a budget. An item without limits
-- stores nothing. Returns whether the budget exists. A declaration replaces limits that were
-- declared before. It never changes limits that an operator set.
drop function if exists ff._declare_budget;
create function ff._declare_budget(
  p_namespace     text,
  p_budget_id     bigint,
  p_gate          jsonb,
  p_key           text,
  p_registered_by text,
  p_now           timestamptz
)
returns boolean
language plpgsql
as $$
declare
  v_period constant ff.budget_period := case
    when p_gate ->> 'period_ms' is not null then 'interval' else p_gate ->> 'period' end;
  v_length constant interval :=
    interval '1 millisecond' * (p_gate ->> 'period_ms')::double precision;
  v_mode   constant ff.on_exceed := coalesce(p_gate ->> 'on_exceed', 'fail');
  v_budget record;
  v_next   timestamptz;
begin
  if p_gate -> 'limits' is null then
    return exists (select from ff.budget b where b.budget_id = p_budget_id);
  end if;
  v_next := ff._next_reset(v_period, p_gate ->> 'zone', v_length, p_now, p_now);
  insert into ff.budget (
    budget_id, namespace, budget, key, on_exceed, period, period_zone, period_length,
    period_started_at, next_reset_at, created_at, created_by)
  values (p_budget_id, p_namespace, p_gate ->> 'name', p_key, v_mode, v_period,
          p_gate ->> 'zone', v_length, p_now, v_next, p_now, p_registered_by)
  on conflict do nothing;
  if not found and not exists (
       select from jsonb_each(p_gate -> 'limits') l(dimension, amounts)
       left join ff.budget_dimension d
         on d.budget_id = p_budget_id and d.dimension = l.dimension
       where d.dimension is null
         or d.declared_hard is distinct from (l.amounts ->> 'hard')::bigint
         or d.declared_soft is distinct from (l.amounts ->> 'soft')::bigint)
     and exists (
       select from ff.budget b where b.budget_id = p_budget_id
         and (b.on_exceed, b.period, b.period_zone, b.period_length) is not distinct from
             (v_mode, v_period, p_gate ->> 'zone', v_length)) then
    return true;
  end if;
  select b.period, b.period_zone, b.period_length, b.created_at, b.next_reset_at into v_budget
  from ff.budget b where b.budget_id = p_budget_id for no key update;
  v_next := v_budget.next_reset_at;
  if (v_budget.period, v_budget.period_zone, v_budget.period_length) is distinct from
     (v_period, p_gate ->> 'zone', v_length) then
    v_next := ff._next_reset(v_period, p_gate ->> 'zone', v_length, v_budget.created_at, p_now);
  end if;
  update ff.budget b set
    on_exceed = v_mode,
    next_reset_at = v_next,
    period = v_period,
    period_zone = p_gate ->> 'zone',
    period_length = v_length
  where b.budget_id = p_budget_id;
  insert into ff.budget_dimension as d (budget_id, dimension, declared_hard, declared_soft)
  select p_budget_id, l.dimension, (l.amounts ->> 'hard')::bigint, (l.amounts ->> 'soft')::bigint
  from jsonb_each(p_gate -> 'limits') l(dimension, amounts)
  order by l.dimension
  on conflict (budget_id, dimension) do update
    set declared_hard = excluded.declared_hard, declared_soft = excluded.declared_soft,
        refused = case when d.raised_hard is null
                         and d.declared_hard is distinct from excluded.declared_hard
                    then 0 else d.refused end;
  update ff.budget_dimension d set declared_hard = null, declared_soft = null
  where d.budget_id = p_budget_id and not p_gate -> 'limits' ? d.dimension
    and num_nonnulls(d.declared_hard, d.declared_soft) > 0;
  perform ff._shut_budget(p_budget_id);
  return true;
end;
$$;
