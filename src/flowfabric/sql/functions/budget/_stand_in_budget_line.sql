-- End the lease of a running execution, because a budget has no room for the usage that the
-- execution reported (T15). The execution then waits in the line of that budget. The caller has
-- locked the execution and the budget, and the budget is shut.
drop function if exists ff._stand_in_budget_line;
create function ff._stand_in_budget_line(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_budget_id     bigint,
  p_detail        jsonb,
  p_now           timestamptz
)
returns void
language plpgsql
as $$
begin
  perform ff._interrupt_executions(
    p_partition_key, array[p_execution_id], 'release', 'blocked_by_budget', 'waiting_for_budget',
    'release', 'released', 'budget', p_now,
    p_detail => jsonb_build_object('budget', p_detail ->> 'budget', 'key', p_detail ->> 'key',
                                   'dimension', p_detail ->> 'dimension'),
    p_line_id => p_budget_id);
  insert into ff.line (partition_key, route_id, gate_id, is_open, served_at)
  select p_partition_key, e.route_id, p_budget_id, false, p_now
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
  on conflict (partition_key, route_id, gate_id) do nothing;
end;
$$;
