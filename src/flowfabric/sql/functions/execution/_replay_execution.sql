-- Replay an ended execution: make it eligible (T28), or blocked if it must wait for upstreams
-- (T29). Returns the new public state.
--
-- If the end of the execution is not yet fully propagated, the call first finishes the propagation.
-- If another transaction has locked an execution that the propagation must change, the call fails
-- with SQLSTATE 40001 and can be repeated.
--
-- In a flow, the edges that the end of the execution made impossible are opened again. Members that
-- were skipped because of this end are replayed too. Their replay does not count towards their
-- limit of replays. If an upstream of a replayed member has succeeded in the meantime, the member
-- gets the result of that upstream now. The earlier result of the execution is kept for the members
-- that were promised this result.
--
-- The call is refused if the limit of replays is reached, if the flow was cancelled, or if members
-- of the flow were trimmed. p_row is the row that _lock_for_replay has returned to the caller.
drop function if exists ff._replay_execution;
create function ff._replay_execution(
  p_partition_key smallint,
  p_row           ff.execution,
  p_reason        text,
  p_actor         text,
  p_detail        jsonb default '{}'
)
returns text
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_id     constant text := format('{fp:%s}:%s', p_partition_key, p_row.execution_id);
  v_detail jsonb := jsonb_strip_nulls(jsonb_build_object('reason', p_reason));
  v_now    timestamptz;
  v_most   integer;
  v_flow   ff.flow;
  v_open   record;
  v_ids    uuid[];
  v_groups smallint[];
  v_wakes  record;
  v_state  text;
begin
  select coalesce((b.policy ->> 'max_replay_count')::numeric, 10) into v_most
  from ff.execution_body b
  where b.partition_key = p_partition_key and b.execution_id = p_row.execution_id;
  if p_row.replay_count >= coalesce(v_most, 10) then
    perform ff._refuse('WF212', 'max_replays_exhausted', jsonb_build_object(
      'id', v_id, 'replays', p_row.replay_count, 'limit', coalesce(v_most, 10)));
  end if;
  select f.* into v_flow from ff.flow f
  where f.partition_key = p_partition_key and f.flow_id = p_row.flow_id;
  if num_nonnulls(v_flow.cancelled_at, v_flow.trimmed_at) > 0 then
    perform ff._refuse('WF215', 'flow_already_terminal', jsonb_strip_nulls(jsonb_build_object(
      'id', v_id, 'flow_id', format('{fp:%s}:%s', p_partition_key, p_row.flow_id),
      'cancelled_at', v_flow.cancelled_at, 'trimmed_at', v_flow.trimmed_at,
      'hint', 'submit a new flow')));
  end if;

  v_now := ff.now();
  v_now := greatest(v_now, p_row.transitioned_at);
  if p_row.flow_id is not null then
    v_open := ff._reopen_edges(p_partition_key, p_row.execution_id, v_now);
    select array_agg(y.downstream_id), array_agg(y.group_no) into v_ids, v_groups
    from unnest(v_open.member_ids || p_row.execution_id) u(id)
    cross join lateral (
      select e.terminal_at, e.total_attempt_count from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
      offset 0) x
    cross join lateral (
      select z.downstream_id, z.group_no from ff.edge_group z
      where z.partition_key = p_partition_key and z.downstream_id = u.id
        and case when z.state = 'satisfied'
                  and (z.fired_at >= x.terminal_at or x.total_attempt_count = 0)
              then true else false end
      offset 0) y;
    perform ff._keep_result(p_partition_key, p_row.execution_id);
    if cardinality(v_open.member_ids) > 0 then
      perform ff._write_replays(
        p_partition_key, v_open.member_ids, false, v_now, p_actor,
        v_detail || jsonb_build_object('caused_by', v_id));
    end if;
    if v_open.groups_reset > 0 then
      v_detail := v_detail || jsonb_build_object(
        'groups_reset', v_open.groups_reset, 'with', cardinality(v_open.member_ids));
    end if;
  elsif p_row.wakes_pending then
    v_wakes := ff._propagate_end(p_partition_key, array[p_row.execution_id], v_now, 10000);
    if v_wakes.pending_ids is not null then
      raise exception using errcode = '40001',
        message = 'an execution that waits for this one is busy';
    end if;
  end if;
  perform ff._write_replays(
    p_partition_key, array[p_row.execution_id], true, v_now, p_actor, v_detail || p_detail);
  if v_ids is not null then
    perform ff._copy_results_to_members(p_partition_key, v_ids, v_groups, v_now);
  end if;
  select e.public_state into v_state from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_row.execution_id;
  return v_state;
end;
$$;
