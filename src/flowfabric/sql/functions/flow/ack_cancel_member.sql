-- Remove an ended member from the backlog of its cancelled flow. The backlog is deleted with its
-- last member. This call is for callers that cancel members one by one; ff.cancel_members removes
-- the members itself.
--
-- A member that has not ended is refused and stays on the backlog, because otherwise nothing would
-- ever end it. If the member is not on the backlog, the answer is `acked` too.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF206 not_terminal
-- Locks:    the backlog of the flow, waiting up to 2 s
-- Repeat:   the same answer: `acked`, and how many are left
-- Rights:   app
drop function if exists ff.ack_cancel_member;
create function ff.ack_cancel_member(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid,
  p_execution_id  uuid
)
returns table (outcome text, remaining integer)
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
  v_row record;
begin
  perform ff._check_namespace(p_namespace);
  if ff._is_nil_id(p_flow_id) or ff._is_nil_id(p_execution_id) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', case when ff._is_nil_id(p_flow_id) then 'flow_id' else 'execution_id' end,
      'problem', 'must be the id of a flow and the id of a member'));
  end if;
  outcome := 'acked';
  remaining := 0;
  -- Two calls for the last two members take turns: the second waits for this lock, and then sees
  -- that no member is left.
  perform 1 from ff.cancel_backlog b
  where b.partition_key = p_partition_key and b.flow_id = p_flow_id
    and case when p_namespace is null then true else exists (
          select from ff.flow f
          where f.partition_key = p_partition_key and f.flow_id = b.flow_id
            and f.namespace = p_namespace
          offset 0) end
  for update;
  if found then
    select e.public_state into v_row
    from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id
      and case when e.flow_id = p_flow_id and e.phase <> 'terminal' then true else false end;
    if found then
      perform ff._refuse('WF206', 'not_terminal', jsonb_build_object(
        'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'state', v_row.public_state,
        'hint', 'cancel it first'));
    end if;
    delete from ff.cancel_backlog_member m
    where m.partition_key = p_partition_key and m.flow_id = p_flow_id
      and m.execution_id = p_execution_id;
    perform ff._delete_empty_backlog(p_partition_key, p_flow_id);
    remaining := (
      select count(*) from ff.cancel_backlog_member m
      where m.partition_key = p_partition_key and m.flow_id = p_flow_id);
  end if;
  return next;
end;
$$;
