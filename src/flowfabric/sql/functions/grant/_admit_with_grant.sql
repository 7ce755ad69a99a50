-- Admit one execution to its own gates and to the gate of its lane, for a claim with a grant. If a
-- quota or budget has no room, refuse the call with not_eligible, which names that quota or budget.
-- The caller has locked the execution.
drop function if exists ff._admit_with_grant;
create function ff._admit_with_grant(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_now           timestamptz
)
returns void
language plpgsql
as $$
declare
  v_row    record;
  v_answer record;
  v_why    record;
  v_gate   bigint;
begin
  select e.route_id, num_nonnulls(e.quota_ids, e.budget_ids) > 0 as is_gated into v_row
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
  select l.gate_id into v_gate
  from ff.route r join ff.lane l on l.namespace = r.namespace and l.lane = r.lane
  where r.route_id = v_row.route_id;
  if v_gate is not null then
    perform ff._join_lane_gates(
      p_partition_key, array[p_execution_id], array[v_row.route_id], array[v_gate]);
  elsif not v_row.is_gated then
    return;
  end if;
  v_answer := ff._admit_to_gates(p_partition_key, array[p_execution_id], '{}', null, p_now);
  if v_answer.admitted = '{}' then
    select g.quota, b.budget, coalesce(g.key, b.key) as key into v_why
    from unnest(v_answer.closed) c(id)
    left join ff.gate g on g.partition_key = p_partition_key and g.gate_id = c.id
    left join ff.budget b on b.budget_id = c.id
    limit 1;
    perform ff._refuse('WF205', 'not_eligible', jsonb_strip_nulls(jsonb_build_object(
      'problem', 'a limit has no room', 'quota', v_why.quota, 'budget', v_why.budget,
      'key', nullif(v_why.key, ''))));
  end if;
end;
$$;
