-- Explain for which quota or budget an execution waits in line. The answer says how full the quota
-- or budget is, and how many executions are ahead in the line. The call counts at most 1 001
-- executions.
drop function if exists ff._explain_line;
create function ff._explain_line(
  p_partition_key smallint,
  p_row           ff.execution
)
returns table (dimension text, code text, evidence jsonb, changes_at timestamptz)
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_ahead  bigint;
  v_gate   ff.gate;
  v_budget ff.budget;
  v_used   record;
  v_line   jsonb;
begin
  select count(*) into v_ahead
  from (
    select from ff.execution e
    where e.partition_key = p_partition_key and e.line_id = p_row.line_id
      and e.route_id = p_row.route_id
      and (e.rank, e.order_at, e.execution_id)
        < (p_row.rank, p_row.order_at, p_row.execution_id)
    limit 1001) a;
  v_line := jsonb_build_object(
    'ahead', least(v_ahead, 1000), 'is_more', v_ahead > 1000, 'since', p_row.blocked_at);
  if p_row.line_id < 4611686018427387904 then
    select g.* into v_gate from ff.gate g
    where g.partition_key = p_partition_key and g.gate_id = p_row.line_id;
    return query select 'quota', 'waits_for_quota',
      jsonb_strip_nulls(v_line || jsonb_build_object(
        'quota', v_gate.quota, 'key', nullif(v_gate.key, ''),
        'running', v_gate.running - coalesce((
          select sum(r.slots) from ff.gate_release r
          where r.partition_key = p_partition_key and r.gate_id = p_row.line_id), 0),
        'concurrency', v_gate.max_running, 'rate', v_gate.rate,
        'rate_window_seconds', extract(epoch from v_gate.rate_window),
        'reserved', nullif((
          select count(*) from unnest(p_row.quota_ids) u(id)
          where exists (
            select from ff.gate g
            where g.partition_key = p_partition_key and g.gate_id = u.id
              and case when p_row.execution_id in (g.reserved_for, g.start_for)
                    then true else false end
            offset 0)), 0),
        'opens_at', v_gate.opens_at)),
      v_gate.opens_at;
    return;
  end if;
  select b.* into v_budget from ff.budget b where b.budget_id = p_row.line_id;
  -- Show the fullest dimension.
  select d.dimension, d.usage, coalesce(d.raised_hard, d.declared_hard) as hard into v_used
  from ff.budget_dimension d
  where d.budget_id = p_row.line_id and coalesce(d.raised_hard, d.declared_hard) is not null
  order by (d.usage::numeric + d.refused) / coalesce(d.raised_hard, d.declared_hard) desc,
           d.dimension
  limit 1;
  return query select 'budget', 'waits_for_budget',
    jsonb_strip_nulls(v_line || jsonb_build_object(
      'budget', v_budget.budget, 'key', nullif(v_budget.key, ''), 'is_shut', v_budget.is_shut,
      'dimension', v_used.dimension, 'usage', v_used.usage, 'limit', v_used.hard,
      'next_reset_at', v_budget.next_reset_at)),
    v_budget.next_reset_at;
end;
$$;
