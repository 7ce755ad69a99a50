-- Store what code declares about a budget, if it declares anything, and return whether the budget
-- exists. A declaration changes limits that code declared, never those that an operator raised.
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
begin
  if p_gate -> 'limits' is null then
    return exists (select from ff.budget b where b.budget_id = p_budget_id);
  end if;
  insert into ff.budget (
    budget_id, namespace, budget, key, on_exceed, period, period_zone, period_length,
    period_started_at, next_reset_at, created_at, created_by)
  values (p_budget_id, p_namespace, p_gate ->> 'name', p_key, v_mode, v_period,
          p_gate ->> 'zone', v_length, p_now,
          ff._next_reset(v_period, p_gate ->> 'zone', v_length, p_now, p_now), p_now,
          p_registered_by)
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
  perform 1 from ff.budget b where b.budget_id = p_budget_id for no key update;
  update ff.budget b set
    on_exceed = v_mode,
    next_reset_at = case
      when (b.period, b.period_zone, b.period_length) is distinct from
           (v_period, p_gate ->> 'zone', v_length)
        then ff._next_reset(v_period, p_gate ->> 'zone', v_length, b.created_at, p_now)
      else b.next_reset_at end,
    period = v_period,
    period_zone = p_gate ->> 'zone',
    period_length = v_length
  where b.budget_id = p_budget_id;
  insert into ff.budget_dimension as d (budget_id, dimension, declared_hard, declared_soft)
  select p_budget_id, l.dimension, (l.amounts ->> 'hard')::bigint, (l.amounts ->> 'soft')::bigint
  from jsonb_each(p_gate -> 'limits') l(dimension, amounts)
  order by l.dimension
  on conflict (budget_id, dimension) do update
    set declared_hard = excluded.declared_hard, declared_soft = excluded.declared_soft;
  update ff.budget_dimension d set declared_hard = null, declared_soft = null
  where d.budget_id = p_budget_id and not p_gate -> 'limits' ? d.dimension
    and num_nonnulls(d.declared_hard, d.declared_soft) > 0;
  perform ff._shut_budget(p_budget_id);
  return true;
end;
$$;
