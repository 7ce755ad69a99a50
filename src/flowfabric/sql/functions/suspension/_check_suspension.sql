-- Refuse malformed arguments of ff.suspend_execution. p_reason is the blocking reason for the
-- p_reason_code of that call. It is null if p_reason_code is unknown.
drop function if exists ff._check_suspension;
create function ff._check_suspension(
  p_execution_id     uuid,
  p_suspension_id    uuid,
  p_wait_names       text[],
  p_wait_occurrences integer[],
  p_targets          uuid[],
  p_k                integer,
  p_until_at         timestamptz,
  p_reason           ff.blocking_reason,
  p_on_timeout       text,
  p_resume_delay     interval,
  p_continuation     text
)
returns void
language plpgsql
immutable
as $$
declare
  v_distinct constant integer := (select count(distinct u.id) from unnest(p_targets) u(id));
  v_words    text[];
begin
  v_words := case
    when p_suspension_id is null or ff._is_nil_id(p_suspension_id)
      then array['suspension_id', 'must be an id that the caller has minted']
    when p_wait_names is null or p_targets is null or cardinality(p_wait_names) > 1000
      or array_ndims(p_wait_names) > 1 or array_position(p_wait_names, null) is not null
      then array['wait_names', 'must be at most 1000 names of waits']
    when cardinality(p_wait_occurrences) is distinct from cardinality(p_wait_names)
      or array_ndims(p_wait_occurrences) > 1 or array_position(p_wait_occurrences, null) is not null
      then array['wait_occurrences', 'must be a number for each wait']
    when (select count(*) <> count(distinct (u.name, u.occurrence))
          from unnest(p_wait_names, p_wait_occurrences) u(name, occurrence))
      then array['wait_names', 'must not hold the same wait twice']
    when cardinality(p_targets) > 1000 or array_ndims(p_targets) > 1
      or array_position(p_targets, null) is not null
      then array['targets', 'must be at most 1000 executions']
    when p_execution_id = any (p_targets)
      then array['targets', 'an execution cannot wait for itself']
    when p_k is not null and p_k not between 1 and v_distinct
      then array['k', 'must be from 1 to the number of different executions']
    when cardinality(p_wait_names) = 0 and cardinality(p_targets) = 0 and p_until_at is null
      then array['wait_names', 'give a wait, an execution or a time to wait for']
    when p_until_at < timestamptz '0001-01-02 00:00:00+00'
      or p_until_at >= timestamptz '9999-01-01 00:00:00+00'
      then array['until_at', 'must be between the years 1 and 9999']
    when p_reason is null
      then array['reason_code', 'must be waiting_for_signal, waiting_for_approval, '
                 'waiting_for_callback, waiting_for_tool_result, waiting_for_operator_review, '
                 'paused_by_policy, paused_by_budget, step_boundary or manual_pause']
    when p_on_timeout is null
      or p_on_timeout not in ('auto_resume', 'fail', 'cancel', 'expire', 'escalate')
      then array['on_timeout', 'must be auto_resume, fail, cancel, expire or escalate']
    when not ff._is_within(p_resume_delay, interval '0', interval '36525 days')
      then array['resume_delay', 'must be between 0 and a hundred years, in days or smaller units']
    when octet_length(p_continuation) > 4096
      then array['continuation', 'must be at most 4096 bytes']
  end;
  if v_words is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', v_words[1], 'problem', v_words[2]));
  end if;
end;
$$;
