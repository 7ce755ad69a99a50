-- Add an execution to a flow. The execution can be in any state, but an execution can be in one
-- flow only.
--
-- p_node_name is the name of the execution in the flow. The caller must keep the names distinct.
-- Returns the number of members and the revision of the graph after the call.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF305 flow_not_found · WF215 flow_already_terminal
--           · WF301 not_found · WF408 already_in_flow
-- Locks:    the flow, then the execution, waiting up to 2 s for each
-- Repeat:   `already_member`, and nothing is counted twice
-- Rights:   app
drop function if exists ff.add_execution_to_flow;
create function ff.add_execution_to_flow(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid,
  p_execution_id  uuid,
  p_node_name     text default null
)
returns table (outcome text, node_count integer, graph_revision integer)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_flow ff.flow;
  v_row  ff.execution;
  v_now  timestamptz;
begin
  perform ff._check_namespace(p_namespace);
  if ff._is_nil_id(p_flow_id) or ff._is_nil_id(p_execution_id) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', case when ff._is_nil_id(p_flow_id) then 'flow_id' else 'execution_id' end,
      'problem', 'must be the id of a flow and the id of an execution'));
  end if;
  if octet_length(p_node_name) not between 1 and 256 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'node_name', 'problem', 'must be text of 1 to 256 bytes'));
  end if;
  v_flow := ff._lock_flow(p_partition_key, p_namespace, p_flow_id);
  v_now := ff.now();
  if exists (select from ff.execution e
             where e.partition_key = p_partition_key and e.execution_id = p_execution_id
               and e.flow_id = p_flow_id) then
    return query select 'already_member', v_flow.node_count, v_flow.graph_revision;
    return;
  end if;
  perform ff._check_graph_open(v_flow);
  v_row := ff._lock_execution(p_partition_key, v_flow.namespace, p_execution_id);
  if v_row.flow_id is not null then
    perform ff._refuse('WF408', 'already_in_flow', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id),
      'flow_id', format('{fp:%s}:%s', p_partition_key, v_row.flow_id)));
  end if;

  update ff.execution e set
    flow_id = p_flow_id,
    has_body = e.has_body or p_node_name is not null,
    mutated_at = greatest(v_now, e.transitioned_at, e.mutated_at)
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
  if p_node_name is not null then
    insert into ff.execution_body (partition_key, execution_id, node_name)
    values (p_partition_key, p_execution_id, p_node_name)
    on conflict (partition_key, execution_id) do update set node_name = excluded.node_name;
  end if;
  return query
  update ff.flow f set
    node_count = f.node_count + 1,
    graph_revision = f.graph_revision + 1,
    mutated_at = greatest(v_now, f.mutated_at)
  where f.partition_key = p_partition_key and f.flow_id = p_flow_id
  returning 'added', f.node_count, f.graph_revision;
end;
$$;
