-- Add usage to all of the budgets or to none of them, and return the outcome.
--
-- The outcome is one of: ok (applied) · soft_breach (applied) · hard_breach (nothing applied) ·
-- invalid (nothing applied, because a total would be out of range) · already_applied (one of the
-- budgets applied a report with the same dedup key in the last 24 hours).
--
-- The answer to a breach also has budget_id, budget, key, dimension, usage, limit and on_exceed.
-- The answer to a hard breach also has the refused amount. The answer already_applied has the
-- outcome of the earlier report as `first`.
--
-- Usage that equals a limit is not a breach. If a budget only warns, its hard limits count as soft
-- limits. After a hard breach, the amount is added to `refused` of the breached dimension. If
-- p_execution_id is given, the applied amounts are also written into the ledger, so that
-- ff.release_budget can take them back.
--
-- The caller has locked the budgets and checked the usage.
drop function if exists ff._charge_budgets;
create function ff._charge_budgets(
  p_budget_ids   bigint[],
  p_usage        jsonb,
  p_dedup_key    text,
  p_execution_id uuid,
  p_now          timestamptz
)
returns jsonb
language plpgsql
as $$
declare
  v_key    constant text := nullif(p_dedup_key, '');
  v_first  text;
  v_breach record;
begin
  if v_key is not null then
    select r.outcome into v_first from ff.budget_report r
    where r.budget_id = any (p_budget_ids) and r.dedup_key = v_key and r.expires_at > p_now
    limit 1;
    if found then
      return jsonb_build_object('outcome', 'already_applied', 'first', v_first);
    end if;
  end if;

  -- Find the first hard limit that would be exceeded, by budget and dimension.
  select b.budget_id, b.budget, b.key, b.on_exceed, u.dimension, u.amount,
         coalesce(d.usage, 0) as usage, coalesce(d.raised_hard, d.declared_hard) as hard,
         coalesce(d.usage, 0)::numeric + u.amount > 9223372036854775807 as is_out_of_range
    into v_breach
  from ff.budget b
  cross join (select x.dimension, (x.amount #>> '{}')::bigint as amount
              from jsonb_each(p_usage) x(dimension, amount)) u
  left join ff.budget_dimension d on d.budget_id = b.budget_id and d.dimension = u.dimension
  where b.budget_id = any (p_budget_ids)
    and (coalesce(d.usage, 0)::numeric + u.amount > 9223372036854775807
         or (b.on_exceed <> 'warn' and u.amount > 0
             and d.usage::numeric + u.amount > coalesce(d.raised_hard, d.declared_hard)))
  order by b.budget_id, u.dimension collate "C"
  limit 1;
  if found and v_breach.is_out_of_range then
    return jsonb_build_object('outcome', 'invalid', 'field', 'usage', 'problem', format(
      'would take %s of the budget %s beyond 9223372036854775807', v_breach.dimension,
      v_breach.budget));
  end if;
  if found then
    update ff.budget_dimension d
    set refused = least(d.refused::numeric + v_breach.amount, 9223372036854775807)::bigint
    where d.budget_id = v_breach.budget_id and d.dimension = v_breach.dimension;
    update ff.budget b set
      breach_count = b.breach_count + 1,
      last_breach_at = greatest(p_now, b.last_breach_at),
      last_breach_dimension = v_breach.dimension
    where b.budget_id = v_breach.budget_id;
    perform ff._shut_budget(v_breach.budget_id);
    return jsonb_build_object(
      'outcome', 'hard_breach', 'budget_id', v_breach.budget_id, 'budget', v_breach.budget,
      'key', v_breach.key, 'dimension', v_breach.dimension, 'usage', v_breach.usage,
      'limit', v_breach.hard, 'amount', v_breach.amount, 'on_exceed', v_breach.on_exceed);
  end if;

  insert into ff.budget_dimension as d (budget_id, dimension, usage)
  select b.budget_id, u.dimension, (u.amount #>> '{}')::bigint
  from ff.budget b cross join jsonb_each(p_usage) u(dimension, amount)
  where b.budget_id = any (p_budget_ids)
  order by b.budget_id, u.dimension collate "C"
  on conflict (budget_id, dimension) do update set usage = d.usage + excluded.usage;
  -- If a budget only warns, its hard limits count as soft limits.
  select b.budget_id, b.budget, b.key, b.on_exceed, d.dimension, d.usage, l.soft
    into v_breach
  from ff.budget b
  join ff.budget_dimension d on d.budget_id = b.budget_id and p_usage ? d.dimension
  cross join lateral (
    select case when b.on_exceed = 'warn'
             then least(d.declared_soft, coalesce(d.raised_hard, d.declared_hard))
             else d.declared_soft end as soft) l
  where b.budget_id = any (p_budget_ids) and d.usage > l.soft
    and (p_usage ->> d.dimension)::bigint > 0
  order by b.budget_id, d.dimension collate "C"
  limit 1;
  v_first := case when found then 'soft_breach' else 'ok' end;
  if found then
    update ff.budget b set soft_breach_count = b.soft_breach_count + 1
    where b.budget_id = v_breach.budget_id;
  end if;
  if v_key is not null then
    insert into ff.budget_report as r (budget_id, dedup_key, outcome, expires_at)
    select b.budget_id, v_key, v_first, p_now + interval '24 hours'
    from ff.budget b where b.budget_id = any (p_budget_ids)
    order by b.budget_id
    on conflict (budget_id, dedup_key) do update
      set outcome = excluded.outcome, expires_at = excluded.expires_at;
  end if;
  if p_execution_id is not null then
    insert into ff.budget_ledger as l (
      budget_id, execution_id, dimension, period_no, amount, spent_at)
    select b.budget_id, p_execution_id, u.dimension, b.period_no, (u.amount #>> '{}')::bigint, p_now
    from ff.budget b cross join jsonb_each(p_usage) u(dimension, amount)
    where b.budget_id = any (p_budget_ids)
    order by b.budget_id, u.dimension collate "C"
    on conflict (budget_id, execution_id, dimension) do update
      set amount = case when l.period_no = excluded.period_no then l.amount else 0 end
                   + excluded.amount,
          period_no = excluded.period_no, spent_at = greatest(l.spent_at, excluded.spent_at);
  end if;
  for v_nth in 1..cardinality(p_budget_ids) loop
    perform ff._shut_budget(p_budget_ids[v_nth]);
  end loop;
  return jsonb_strip_nulls(jsonb_build_object(
    'outcome', v_first, 'budget_id', v_breach.budget_id, 'budget', v_breach.budget,
    'key', v_breach.key, 'dimension', v_breach.dimension, 'usage', v_breach.usage,
    'limit', v_breach.soft, 'on_exceed', v_breach.on_exceed));
end;
$$;
