-- Apply a staged edge, so that it blocks its downstream. If the upstream has already ended, this
-- call also resolves the edge, with all consequences. An edge of a decided group blocks nothing.
--
-- A runnable downstream must be eligible, or already wait for dependencies. Otherwise the call is
-- refused, because blocking the downstream would lose its delay or its pause. A running downstream
-- is accepted only if its holder presents the fence. The edge then takes effect when the holder
-- calls ff.wait_children.
--
-- `unsatisfied` is the number of applied, unresolved edges into the downstream.
--
-- Moves:    runnable eligible -> runnable blocked (T3, quiet); an ended upstream is propagated
--           (T4, T5, T18, T23); an expired lease is marked as expired (T19); an overdue execution
--           is settled as by ff.expire_executions (T24)
-- Refuses:  WF003 invalid_dependency · WF301 not_found · WF215 flow_already_terminal
--           · WF217 not_runnable · as outcome: not_active · lease_revoked · lease_expired
--           · stale_lease · invalid
-- Locks:    upstream and downstream, in id order, waiting up to 2 s for each
-- Repeat:   `already_applied`
-- Rights:   app
drop function if exists ff.apply_dependency_to_child;
create function ff.apply_dependency_to_child(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid,
  p_edge_id       uuid,
  p_upstream_id   uuid,
  p_downstream_id uuid,
  p_lease_id      uuid default null,
  p_epoch         bigint default null,
  p_attempt_id    uuid default null
)
returns table (outcome text, unsatisfied integer, public_state text, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now        timestamptz;
  v_flow       ff.flow;
  v_edge       ff.edge;
  v_state      ff.group_state;
  v_row        ff.execution;
  v_has_ended  boolean;
  v_verdict    ff.verdict;
  v_wakes      record;
  v_is_pending boolean := false;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._lock_executions(
    p_partition_key, p_namespace, array[p_upstream_id, p_downstream_id]);
  v_now := ff.now();
  select f.* into v_flow
  from ff.flow f
  where f.partition_key = p_partition_key and f.flow_id = p_flow_id
    and case when p_namespace is null then true else f.namespace = p_namespace end;
  select g.* into v_edge
  from ff.edge g
  where g.partition_key = p_partition_key and g.flow_id = v_flow.flow_id and g.edge_id = p_edge_id;
  if v_edge.edge_id is null or v_edge.upstream_id is distinct from p_upstream_id
     or v_edge.downstream_id is distinct from p_downstream_id then
    perform ff._refuse('WF003', 'invalid_dependency', jsonb_build_object(
      'field', 'edge_id', 'problem', case when v_edge.edge_id is null
        then 'edge_not_found: the flow has no such edge' else 'connects other members' end));
  end if;
  -- The row is locked already, so this does not wait.
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_downstream_id);
  outcome := 'already_applied';

  if v_edge.applied_at is null then
    perform ff._check_graph_open(v_flow);
    if v_row.phase = 'active' and p_lease_id is not null then
      v_verdict := (ff._enforce_leases(
        p_partition_key, p_namespace, 'wait_children', array[p_downstream_id], array[p_lease_id],
        array[p_epoch], array[p_attempt_id], false))[1];
      if v_verdict.word <> 'leased' then
        return query select v_verdict.word, null::integer, null::text, v_verdict.detail;
        return;
      end if;
    elsif v_row.eligibility not in ('eligible_now', 'blocked_by_dependencies')
          or v_row.wait_left is not null then
      perform ff._refuse('WF217', 'not_runnable', jsonb_build_object(
        'id', format('{fp:%s}:%s', p_partition_key, p_downstream_id), 'state', v_row.public_state,
        'blocking_reason', v_row.blocking_reason));
    end if;
    v_now := greatest(v_now, v_row.transitioned_at);
    update ff.edge g set applied_at = v_now, resolution = 'unsatisfied'
    where g.partition_key = p_partition_key and g.flow_id = p_flow_id and g.edge_id = p_edge_id;
    update ff.execution e set is_awaited = true
    where e.partition_key = p_partition_key and e.execution_id = p_upstream_id
      and case when e.is_awaited then false else true end;
    select y.state into v_state
    from ff.edge_group y
    where y.partition_key = p_partition_key and y.downstream_id = p_downstream_id
      and y.group_no = v_edge.group_no;
    if v_row.eligibility = 'eligible_now' and v_state = 'pending' then
      update ff.execution e set
        eligibility = 'blocked_by_dependencies',
        line_id = null,
        blocking_reason = 'waiting_for_children',
        cause = 'apply_dependency',
        transitioned_at = v_now,
        mutated_at = greatest(v_now, e.mutated_at)
      where e.partition_key = p_partition_key and e.execution_id = p_downstream_id;
    end if;
    select e.phase = 'terminal' into v_has_ended
    from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_upstream_id;
    if v_has_ended then
      v_wakes := ff._propagate_end(p_partition_key, array[p_upstream_id], v_now);
      v_is_pending := cardinality(v_wakes.pending_ids) > 0 or v_wakes.has_more;
    end if;
    outcome := 'applied';
  end if;

  unsatisfied := (
    select count(*) from ff.edge g
    where g.partition_key = p_partition_key and g.downstream_id = p_downstream_id
      and case when g.resolution = 'unsatisfied' then true else false end);
  public_state := (
    select e.public_state::text from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_downstream_id);
  detail := case when v_is_pending then jsonb_build_object('wakes_pending', true) end;
  return next;
end;
$$;
