-- Declare that one member of a flow depends on another. The edge counts in its group from now on,
-- and blocks the downstream once it is applied.
--
-- p_expected_graph_revision is the revision that the caller has read. If the graph has changed
-- since, the call is refused. The answer has the new revision, which the next call must expect.
--
-- An edge that closes a cycle is refused, and the answer has the path of the cycle. A decided group
-- takes no more edges, so a later dependency needs a new group.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF003 invalid_dependency · WF409 self_referencing_edge
--           · WF305 flow_not_found · WF215 flow_already_terminal · WF412 stale_graph_revision
--           · WF216 not_in_flow · WF410 cycle_detected · WF411 dependency_exists
-- Locks:    the flow, then the downstream, waiting up to 2 s for each
-- Repeat:   for the same edge and the same expected revision, the first answer again
-- Rights:   app
drop function if exists ff.stage_dependency_edge;
create function ff.stage_dependency_edge(
  p_partition_key           smallint,
  p_namespace               text,
  p_flow_id                 uuid,
  p_edge_id                 uuid,
  p_upstream_id             uuid,
  p_downstream_id           uuid,
  p_expected_graph_revision integer,
  p_kind                    text default 'success_only',
  p_data_passing_ref        text default null,
  p_group_no                smallint default 0,
  p_created_by              text default 'engine'
)
returns table (outcome text, edge_id uuid, graph_revision integer)
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
  v_flow    ff.flow;
  v_known   ff.edge;
  v_row     ff.execution;
  v_state   ff.group_state;
  v_path    text[];
  v_problem text[];
  v_now     timestamptz;
begin
  perform ff._check_namespace(p_namespace);
  v_problem := case
    when ff._is_nil_id(p_edge_id) then array['edge_id', 'must be a uuid other than the nil uuid']
    when ff._is_nil_id(p_upstream_id) then array['upstream_id', 'must be the id of an execution']
    when ff._is_nil_id(p_downstream_id) then array['downstream_id', 'must be the id of an execution']
    when p_expected_graph_revision is null
      then array['expected_graph_revision', 'must be a whole number, 0 or more']
    when octet_length(p_data_passing_ref) > 256
      then array['data_passing_ref', 'must be at most 256 bytes']
    when p_group_no is null or p_group_no < 0
      then array['group_no', 'must be a whole number, 0 or more']
    when p_created_by is null or octet_length(p_created_by) not between 1 and 256
      then array['created_by', 'must be text of 1 to 256 bytes'] end;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', v_problem[1], 'problem', v_problem[2]));
  end if;
  if p_kind is distinct from 'success_only' then
    perform ff._refuse('WF003', 'invalid_dependency', jsonb_build_object(
      'field', 'kind', 'problem', 'must be success_only'));
  end if;
  if p_upstream_id = p_downstream_id then
    perform ff._refuse('WF409', 'self_referencing_edge', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_upstream_id)));
  end if;

  v_flow := ff._lock_flow(p_partition_key, p_namespace, p_flow_id);
  v_now := ff.now();
  select g.* into v_known
  from ff.edge g
  where g.partition_key = p_partition_key and g.flow_id = p_flow_id and g.edge_id = p_edge_id;
  if v_known.upstream_id = p_upstream_id and v_known.downstream_id = p_downstream_id
     and v_known.group_no = p_group_no and v_known.created_by = p_created_by
     and v_known.data_passing_ref is not distinct from nullif(p_data_passing_ref, '')
     and p_expected_graph_revision < v_flow.graph_revision then
    return query select 'staged', p_edge_id, p_expected_graph_revision + 1;
    return;
  end if;
  perform ff._check_graph_open(v_flow);
  if p_expected_graph_revision <> v_flow.graph_revision then
    perform ff._refuse('WF412', 'stale_graph_revision', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_flow_id),
      'expected', p_expected_graph_revision, 'graph_revision', v_flow.graph_revision));
  end if;
  perform ff._check_member(p_partition_key, p_flow_id, p_upstream_id);
  perform ff._check_member(p_partition_key, p_flow_id, p_downstream_id);
  if v_known.edge_id is not null then
    perform ff._refuse('WF411', 'dependency_exists', jsonb_build_object(
      'edge', jsonb_build_object(
        'edge_id', p_edge_id,
        'upstream_id', format('{fp:%s}:%s', p_partition_key, v_known.upstream_id),
        'downstream_id', format('{fp:%s}:%s', p_partition_key, v_known.downstream_id),
        'group_no', v_known.group_no, 'kind', v_known.kind,
        'data_passing_ref', v_known.data_passing_ref, 'created_at', v_known.created_at,
        'created_by', v_known.created_by, 'applied_at', v_known.applied_at,
        'resolution', v_known.resolution)));
  end if;
  v_path := ff._find_cycle(p_partition_key, p_upstream_id, p_downstream_id);
  if v_path is not null then
    perform ff._refuse('WF410', 'cycle_detected', case
      when v_path[1] = 'cycle_check_limit' then jsonb_build_object(
        'problem', 'cycle_check_limit: more than 10000 members depend on the downstream')
      else jsonb_build_object('path', v_path) end);
  end if;

  v_row := ff._lock_execution(p_partition_key, p_namespace, p_downstream_id);
  select y.state into v_state
  from ff.edge_group y
  where y.partition_key = p_partition_key and y.downstream_id = p_downstream_id
    and y.group_no = p_group_no;
  if v_state <> 'pending' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'group_no', 'problem',
      format('group %s of this execution is already %s; use another group', p_group_no, v_state)));
  end if;
  insert into ff.edge (
    partition_key, flow_id, edge_id, upstream_id, downstream_id, group_no, kind, data_passing_ref,
    created_at, created_by)
  values (p_partition_key, p_flow_id, p_edge_id, p_upstream_id, p_downstream_id, p_group_no,
          p_kind::ff.dependency_kind, nullif(p_data_passing_ref, ''), v_now, p_created_by);
  insert into ff.edge_group as y (partition_key, downstream_id, group_no, flow_id, n)
  values (p_partition_key, p_downstream_id, p_group_no, p_flow_id, 1)
  on conflict (partition_key, downstream_id, group_no) do update set n = y.n + 1;
  return query
  update ff.flow f set
    edge_count = f.edge_count + 1,
    graph_revision = f.graph_revision + 1,
    mutated_at = greatest(v_now, f.mutated_at)
  where f.partition_key = p_partition_key and f.flow_id = p_flow_id
  returning 'staged', p_edge_id, f.graph_revision;
end;
$$;
