-- Explain how an execution ended. p_event is the latest event of the execution among the kinds that
-- can name an actor or a reason (blocked, held, cancelled, lease_revoked, replayed, skipped). It is
-- null if there is no such event.
drop function if exists ff._explain_end;
create function ff._explain_end(
  p_partition_key smallint,
  p_row           ff.execution,
  p_event         ff.event
)
returns table (dimension text, code text, evidence jsonb, changes_at timestamptz)
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_cause record;
begin
  if p_row.outcome = 'skipped' and p_event.kind = 'skipped' then
    select b.node_name, p_event.detail ->> 'upstream' as id, p_event.detail ->> 'outcome' as word
      into v_cause
    from (select split_part(p_event.detail ->> 'upstream', '}:', 2)::uuid as id) u
    left join ff.execution_body b
      on b.partition_key = p_partition_key and b.execution_id = u.id;
  else
    select null::text as node_name, null::text as id, null::text as word into v_cause;
  end if;
  return query select 'end',
    case p_row.outcome
      when 'success' then 'completed'
      when 'expired' then case when p_row.cause = 'expire'
                            then 'deadline_passed' else 'attempt_timed_out' end
      when 'cancelled' then 'cancelled'
      when 'skipped' then 'skipped'
      else case when p_row.cause <> 'exceed_reclaims' then 'failed'
                when p_row.failure_category = 'crashed_alone' then 'crashed_alone'
                else 'reclaims_exhausted' end end,
    jsonb_strip_nulls(jsonb_build_object(
      'at', p_row.terminal_at, 'attempts', p_row.total_attempt_count,
      'retries', p_row.retry_count, 'reclaims', p_row.reclaim_count,
      'lone_crashes', nullif(p_row.lone_crash_count, 0),
      'failure_class', p_row.failure_class, 'failure_category', p_row.failure_category,
      'failure_reason', p_row.failure_reason, 'deadline_at', p_row.deadline_at,
      'cancelled_by', p_row.cancelled_by, 'reason', p_row.cancellation_reason,
      'actor', case when p_event.kind::text = p_row.outcome::text then p_event.actor end,
      'upstream', v_cause.id, 'upstream_name', v_cause.node_name,
      'upstream_outcome', v_cause.word,
      'kept_until', p_row.trim_at)),
    null::timestamptz;
end;
$$;
