-- Explain why an execution is not eligible before an instant. The reason is a delay, a sleep, the
-- back-off of a retry, a delay after a resume, or a wait for a worker with newer code. If the
-- deadline comes before that instant, another row says so.
drop function if exists ff._explain_delay;
create function ff._explain_delay(
  p_partition_key smallint,
  p_row           ff.execution,
  p_policy        jsonb,
  p_now           timestamptz
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
  v_sleep ff.step;
  v_newer jsonb;
begin
  if p_row.deadline_at > p_now and p_row.deadline_at <= p_row.delayed_until then
    return query select 'time', 'expires_before_it_starts',
      jsonb_build_object('deadline_at', p_row.deadline_at, 'delayed_until', p_row.delayed_until),
      p_row.deadline_at;
  end if;
  if p_row.delayed_until <= p_now then
    return query select 'time', 'promotion_due',
      jsonb_build_object('delayed_until', p_row.delayed_until,
                         'blocking_reason', p_row.blocking_reason),
      p_row.delayed_until;
  elsif p_row.attempt_state = 'pending_retry_attempt' then
    return query select 'time', 'retry_backoff',
      jsonb_strip_nulls(jsonb_build_object(
        'delayed_until', p_row.delayed_until, 'retry', p_row.retry_count,
        'max_retries', coalesce((p_policy #>> '{retry_policy,max_retries}')::numeric, 3),
        'failure_class', p_row.failure_class, 'failure_category', p_row.failure_category,
        'failure_reason', p_row.failure_reason, 'failed_at', p_row.attempt_ended_at)),
      p_row.delayed_until;
  else
    -- Find the current sleep: the first sleep in the journal that ends when the delay ends.
    if p_row.attempt_state = 'attempt_interrupted' then
      select s.* into v_sleep
      from ff.step s
      where s.partition_key = p_partition_key and s.execution_id = p_row.execution_id
        and case when s.kind = 'sleep' and s.until_at = p_row.delayed_until
              then true else false end
      order by s.position
      limit 1;
    end if;
    if p_row.attempt_pause_cause = 'older_code' then
      select v.detail into v_newer
      from ff.event v
      where v.partition_key = p_partition_key and v.execution_id = p_row.execution_id
        and v.detail ? 'newer_step'
      order by v.generation desc, v.event_id desc
      limit 1;
    end if;
    return query select 'time',
      case when p_row.blocking_reason = 'waiting_for_resume_delay' then 'resume_delayed'
           when v_sleep.name is not null then 'sleeping'
           when p_row.attempt_pause_cause = 'older_code' then 'waiting_for_newer_code'
           when p_row.attempt_state = 'attempt_interrupted' then 'delayed_by_worker'
           else 'delayed_by_submit' end,
      jsonb_strip_nulls(jsonb_build_object(
        'delayed_until', p_row.delayed_until, 'sleep', v_sleep.name,
        'occurrence', v_sleep.occurrence,
        'step', v_newer -> 'newer_step', 'since', v_newer -> 'since',
        'worker_instance_id', case when p_row.attempt_state = 'attempt_interrupted'
                                then p_row.last_worker_instance_id end)),
      p_row.delayed_until;
  end if;
end;
$$;
