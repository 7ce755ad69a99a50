-- Set the policy of a group of edges into a member: all_of (the default), any_of, or a quorum of k.
-- p_on_satisfied says what happens to upstreams that are no longer needed.
--
-- Call this before the first edge of the group is staged. The number of edges is not known yet, so
-- k is not compared with it.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF305 flow_not_found · WF215 flow_already_terminal
--           · WF216 not_in_flow
-- Locks:    the flow, then the downstream, waiting up to 2 s for each
-- Repeat:   `already_set`
-- Rights:   app
drop function if exists ff.set_edge_group_policy;
create function ff.set_edge_group_policy(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid,
  p_downstream_id uuid,
  p_policy        text,
  p_k             integer default null,
  p_on_satisfied  text default null,
  p_group_no      smallint default 0
)
returns table (outcome text)
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
  v_row     ff.execution;
  v_group   ff.edge_group;
  v_problem text[];
  v_now     timestamptz;
  v_after   text;
begin
  perform ff._check_namespace(p_namespace);
  v_problem := case
    when p_policy is null or p_policy not in ('all_of', 'any_of', 'quorum')
      then array['policy', 'must be all_of, any_of or quorum']
    when p_policy = 'quorum' and (p_k is null or p_k < 1) then array['k', 'quorum k must be >= 1']
    when p_policy <> 'quorum' and p_k is not null then array['k', 'belongs to a quorum only']
    when p_policy = 'all_of' and p_on_satisfied is not null
      then array['on_satisfied', 'must be left out: all_of needs every upstream']
    when p_on_satisfied not in ('cancel_remaining', 'let_run')
      then array['on_satisfied', 'must be cancel_remaining or let_run']
    when p_group_no is null or p_group_no < 0
      then array['group_no', 'must be a whole number, 0 or more'] end;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_after := case when p_policy <> 'all_of' then coalesce(p_on_satisfied, 'cancel_remaining') end;

  v_flow := ff._lock_flow(p_partition_key, p_namespace, p_flow_id);
  v_now := ff.now();
  perform ff._check_member(p_partition_key, p_flow_id, p_downstream_id);
  select y.* into v_group
  from ff.edge_group y
  where y.partition_key = p_partition_key and y.downstream_id = p_downstream_id
    and y.group_no = p_group_no;
  if v_group.policy::text = p_policy and v_group.k is not distinct from p_k
     and v_group.on_satisfied::text is not distinct from v_after then
    return query select 'already_set';
    return;
  end if;
  perform ff._check_graph_open(v_flow);
  if v_group.n > 0 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'policy', 'problem', format(
        'edge_group_policy_already_fixed: group %s has edges already; its policy is %s',
        p_group_no, v_group.policy)));
  end if;
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_downstream_id);
  insert into ff.edge_group as y (
    partition_key, downstream_id, group_no, flow_id, policy, k, on_satisfied)
  values (p_partition_key, p_downstream_id, p_group_no, p_flow_id, p_policy::ff.group_policy, p_k,
          v_after::ff.on_satisfied)
  on conflict (partition_key, downstream_id, group_no) do update
    set policy = excluded.policy, k = excluded.k, on_satisfied = excluded.on_satisfied;
  update ff.flow f set mutated_at = greatest(v_now, f.mutated_at)
  where f.partition_key = p_partition_key and f.flow_id = p_flow_id;
  return query select 'set';
end;
$$;
