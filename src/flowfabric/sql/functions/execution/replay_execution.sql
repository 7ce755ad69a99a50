-- Run an ended execution again. Its history stays; the next claim starts a new attempt.
--
-- Moves:    terminal -> runnable eligible, attempt pending replay (T28)
-- Refuses:  WF001 invalid_input · WF206 not_terminal · WF212 max_replays_exhausted · WF301 not_found
-- Locks:    the execution, waiting up to 2 s
-- Replay:   already_applied when the version has moved
drop function if exists ff.replay_execution;
create function ff.replay_execution(
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
set search_path = ''
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_row ff.execution;
begin
  perform ff._check_words(p_actor, p_reason);
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  if v_row.phase <> 'terminal' then
    perform ff._refuse('WF206', 'not_terminal', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'state', v_row.public_state,
      'hint', 'only an ended execution can be replayed; cancel it first'));
  end if;
  perform ff._replay_execution(p_partition_key, v_row, p_reason, p_actor);
  return query select 'replayed', 'waiting', v_row.version + 1, null::jsonb;
end;
$$;
