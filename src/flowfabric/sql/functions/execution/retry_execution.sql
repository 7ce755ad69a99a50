-- Make an execution run now. An ended execution is replayed as by ff.replay_execution. An execution
-- that is delayed or in back-off becomes eligible. If the execution sleeps, its sleep ends. An
-- execution that is held, paused, or blocked by a budget, a quota or a missing worker is unblocked.
--
-- The call is refused if the execution is already eligible, active or suspended, or if it waits for
-- dependencies or for other executions. It is also refused if the execution is paused because its
-- flow is being cancelled.
--
-- Moves:    terminal -> runnable eligible (T28) or blocked (T29) · runnable delayed -> eligible
--           (T8) · runnable blocked -> eligible (T7); if the end of the execution is not yet fully
--           propagated, a replay first finishes the propagation: runnable blocked or suspended ->
--           eligible (T4, T18), unfinished -> terminal cancelled (T23) or skipped (T5)
-- Refuses:  WF001 invalid_input · WF205 not_eligible · WF212 max_replays_exhausted
--           · WF215 flow_already_terminal · WF219 deps_not_satisfied · WF301 not_found
-- Locks:    the same rows as ff.replay_execution
-- Repeat:   `already_applied` if p_if_version is given, because the version has changed; otherwise
--           WF205 not_eligible, or another retry if the execution can be retried again
-- Rights:   app
drop function if exists ff.retry_execution;
create function ff.retry_execution(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_reason        text default null,
  p_actor         text default null,
  p_if_version    integer default null
)
returns table (outcome text, public_state text, version integer, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_row   ff.execution;
  v_now   timestamptz;
  v_word  text;
  v_state text := 'waiting';
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  v_row := ff._lock_for_replay(p_partition_key, p_namespace, p_execution_id);
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  v_now := ff.now();
  if v_row.phase = 'terminal' then
    v_word := 'replayed';
    v_state := ff._replay_execution(p_partition_key, v_row, p_reason, p_actor);
  elsif v_row.eligibility = 'not_eligible_until_time' then
    v_word := 'promoted';
    if v_row.attempt_state = 'attempt_interrupted' then
      -- End the sleep in the journal. Otherwise the handler would continue to sleep.
      update ff.step s set until_at = greatest(v_now, s.recorded_at)
      where s.partition_key = p_partition_key and s.execution_id = p_execution_id
        and case when s.kind = 'sleep' and s.until_at > v_now then true else false end;
    end if;
    perform ff._make_eligible(
      p_partition_key, p_execution_id, 'promote', 'promoted', v_now, p_actor,
      jsonb_strip_nulls(jsonb_build_object('delayed_until', v_row.delayed_until, 'reason', p_reason)));
  elsif v_row.eligibility in ('blocked_by_operator', 'blocked_by_budget', 'blocked_by_quota',
                              'blocked_by_route')
    and v_row.blocking_reason <> 'paused_by_flow_cancel' then
    v_word := 'unblocked';
    perform ff._make_eligible(
      p_partition_key, p_execution_id, 'unblock', 'unblocked', v_now, p_actor,
      jsonb_strip_nulls(jsonb_build_object(
        'blocking_reason', v_row.blocking_reason, 'reason', p_reason)));
  else
    perform ff._refuse('WF205', 'not_eligible', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'state', v_row.public_state,
      'hint', 'only an ended, delayed, held or blocked execution can be retried, not one that '
      'waits for dependencies or whose flow is being cancelled'));
  end if;
  perform ff._write_execution_audit(
    p_partition_key, v_row, p_actor, 'retry_execution', p_reason,
    jsonb_build_object('outcome', v_word, 'state', v_state));
  return query select v_word, v_state, v_row.version + 1, null::jsonb;
end;
$$;
