-- Run an ended execution again. Its history stays, and the next claim starts a new attempt.
--
-- Recorded steps stay and are not run again. If p_from_step names a step, that step and every step
-- started after it are deleted. If p_fresh is true, all steps are deleted, and no wait gets a
-- signal that was sent before the replay.
--
-- A held execution can also be replayed, but only if p_from_step is given or p_fresh is true: the
-- execution is unblocked, and its attempt resumes.
--
-- p_payload replaces the payload of the execution, for the next attempt and all later attempts. The
-- event of the replay then says `input: edited`. The payload of a member of a flow comes from its
-- flow and cannot be replaced.
--
-- A member of a flow waits again for the upstreams that did not succeed, except in groups that are
-- satisfied without them. Members that were skipped because of the end of this member are replayed
-- too, and so on downstream. Nothing is replayed in a cancelled flow.
--
-- If the end of the execution is not yet fully propagated, the call first finishes the propagation.
-- If another transaction has locked an execution that the propagation must change, the call fails
-- with SQLSTATE 40001 and can be repeated.
--
-- Moves:    terminal -> runnable eligible, attempt pending replay (T28) · terminal -> runnable
--           blocked (T29) · runnable held -> runnable eligible (T7); to finish the propagation:
--           runnable blocked or suspended -> eligible (T4, T18), unfinished -> terminal cancelled
--           (T23) or skipped (T5)
-- Refuses:  WF001 invalid_input (also for a step that does not exist) · WF206 not_terminal
--           · WF212 max_replays_exhausted · WF215 flow_already_terminal · WF219 deps_not_satisfied
--           · WF301 not_found
-- Locks:    the flow of the execution; then the execution and the members replayed with it, in id
--           order, waiting up to 2 s for each; then the executions that the propagation must
--           change, without waiting
-- Repeat:   `already_applied` if p_if_version is given, because the version has changed; otherwise
--           WF206 not_terminal, or another replay if the execution has ended again
-- Rights:   app
drop function if exists ff.replay_execution;
create function ff.replay_execution(
  p_partition_key   smallint,
  p_namespace       text,
  p_execution_id    uuid,
  p_reason          text default null,
  p_actor           text default null,
  p_from_step       text default null,
  p_from_occurrence integer default 0,
  p_fresh           boolean default false,
  p_if_version      integer default null,
  p_payload         bytea default null
)
returns table (outcome text, public_state text, version integer, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_row     ff.execution;
  v_now     timestamptz;
  v_is_held boolean;
  v_detail  jsonb;
  v_state   text;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  if p_fresh is null or (p_fresh and p_from_step is not null) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'fresh', 'problem', 'give a step to replay from, or fresh, not both'));
  end if;
  if p_from_occurrence is null or p_from_occurrence < 0
     or (p_from_occurrence > 0 and p_from_step is null) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'from_occurrence', 'problem', 'must be the occurrence of a step, 0 or more'));
  end if;
  if octet_length(p_payload) > 1048576 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'payload', 'problem', 'is larger than 1 MiB (1048576 bytes)'));
  end if;
  v_row := ff._lock_for_replay(p_partition_key, p_namespace, p_execution_id);
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  v_is_held := v_row.eligibility = 'blocked_by_operator'
    and v_row.blocking_reason = 'paused_by_policy' and (p_fresh or p_from_step is not null);
  if v_row.phase <> 'terminal' and not v_is_held then
    perform ff._refuse('WF206', 'not_terminal', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'state', v_row.public_state,
      'hint', 'only an ended execution can be replayed; cancel it first'));
  end if;

  if p_payload is not null and v_row.flow_id is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'payload', 'problem', 'of a member of a flow cannot be edited; submit a new flow'));
  end if;

  v_now := ff.now();
  v_detail := ff._delete_steps(
    p_partition_key, p_execution_id, p_from_step, p_from_occurrence, p_fresh);
  if p_payload is not null then
    -- A small payload is stored on the row, a large one in the body.
    insert into ff.execution_body as b (partition_key, execution_id, payload)
    values (p_partition_key, p_execution_id,
            case when octet_length(p_payload) > 256 then p_payload end)
    on conflict (partition_key, execution_id) do update set payload = excluded.payload;
    update ff.execution e set
      payload = case when octet_length(p_payload) <= 256 then p_payload end,
      payload_encoding = null, has_payload = true, has_body = true
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
    v_detail := v_detail || jsonb_build_object('input', 'edited');
  end if;
  if p_fresh then
    update ff.signal g set taken_at = v_now
    where g.partition_key = p_partition_key and g.execution_id = p_execution_id
      and g.taken_at is null;
  end if;
  if v_is_held then
    perform ff._make_eligible(
      p_partition_key, p_execution_id, 'unblock', 'unblocked', v_now, p_actor,
      jsonb_strip_nulls(jsonb_build_object(
        'blocking_reason', v_row.blocking_reason, 'reason', p_reason)) || v_detail);
    perform ff._write_execution_audit(
      p_partition_key, v_row, p_actor, 'replay_execution', p_reason,
      jsonb_build_object('outcome', 'unblocked') || v_detail);
    return query select 'unblocked', 'waiting', v_row.version + 1, null::jsonb;
  else
    v_state := ff._replay_execution(p_partition_key, v_row, p_reason, p_actor, v_detail);
    perform ff._write_execution_audit(
      p_partition_key, v_row, p_actor, 'replay_execution', p_reason,
      jsonb_build_object('state', v_state) || v_detail);
    return query select 'replayed', v_state, v_row.version + 1, null::jsonb;
  end if;
end;
$$;
