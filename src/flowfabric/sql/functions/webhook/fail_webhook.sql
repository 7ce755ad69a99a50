-- Record that a post of a webhook failed, and set the time at which a worker can try again. The
-- holder of the webhook calls this. At the 24th failure in a row the webhook is disabled, its lease
-- ends, and an event `webhook_disabled` is written.
--
-- The time between two tries doubles from 5 seconds up to an hour. So 24 failures take at least 14
-- hours. A failure that is reported before the time of the next try is not counted, so that no
-- caller can disable a webhook sooner.
--
-- p_ack_no numbers the failures and acknowledgements of one lease together. A number that is not
-- higher than the last stored number changes nothing.
--
-- The event belongs to no execution. Its execution_id is a digest that depends on the secret of the
-- webhook. So no caller can submit an execution with the same id.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden · as outcome: subscription_lost
-- Locks:    the row of the subscription, waiting up to 2 s
-- Repeat:   the same answer; the failure is counted once
-- Rights:   app
drop function if exists ff.fail_webhook;
create function ff.fail_webhook(
  p_partition_key smallint,
  p_namespace     text,
  p_name          text,
  p_holder_id     uuid,
  p_epoch         bigint,
  p_ack_no        bigint,
  p_answer        text
)
returns table (outcome text, failure_count integer, retry_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now        timestamptz;
  v_problem    text[];
  v_row        ff.subscription;
  v_xid        xid8;
  v_generation integer;
  v_digits     text;
  v_notice_id  uuid;
begin
  perform ff._check_namespace(p_namespace);
  v_problem := case
    when p_ack_no is null or p_ack_no < 1 then array['ack_no', 'must be 1 or more']
    when p_answer is null or octet_length(p_answer) > 1024
      then array['answer', 'must be at most 1024 bytes'] end;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_row := ff._lock_subscription(p_namespace, p_name);
  v_now := ff.now();
  if v_row.webhook_id is null or p_holder_id is null or v_row.epoch is distinct from p_epoch
     or (v_row.holder_id is distinct from p_holder_id and v_row.disabled_at is null) then
    return query select 'subscription_lost', null::integer, null::timestamptz;
    return;
  end if;
  if p_ack_no <= v_row.ack_no or v_row.retry_at > v_now then
    return query
    select case when v_row.disabled_at is null then 'failed' else 'disabled' end,
           v_row.failure_count, v_row.retry_at;
    return;
  end if;
  update ff.subscription s set
    ack_no = p_ack_no,
    failure_count = s.failure_count + 1,
    retry_at = case when s.failure_count + 1 < 24 then (v_now at time zone 'UTC'
      + least(interval '5 seconds' * (2 ^ least(s.failure_count, 20)), interval '1 hour'))
      at time zone 'UTC' end,
    answer = p_answer,
    answered_at = greatest(v_now, s.answered_at),
    disabled_at = case when s.failure_count + 1 >= 24 then v_now end,
    holder_id = case when s.failure_count + 1 < 24 then s.holder_id end,
    holder_name = case when s.failure_count + 1 < 24 then s.holder_name end,
    lease_expires_at = case when s.failure_count + 1 < 24 then s.lease_expires_at end
  where s.namespace = p_namespace and s.name = p_name
  returning s.* into v_row;
  if v_row.disabled_at is not null then
    v_digits := encode(sha256(v_row.outer_block || int8send(p_epoch)), 'hex');
    v_notice_id := left(v_digits, 12) || '8' || substr(v_digits, 13, 3) || 'a'
                   || substr(v_digits, 16, 15);
    v_xid := pg_current_xact_id();
    v_generation := ff._enter_generation(p_partition_key);
    insert into ff.event_trim (partition_key, due_at, execution_id)
    values (p_partition_key, v_now + interval '30 days', v_notice_id)
    on conflict do nothing;
    insert into ff.event (
      partition_key, generation, xid, execution_id, version, kind, namespace, occurred_at, detail)
    values (
      p_partition_key, v_generation, v_xid, v_notice_id, 1, 'webhook_disabled', p_namespace, v_now,
      jsonb_build_object('webhook', p_name, 'failures', v_row.failure_count, 'answer', p_answer));
  end if;
  return query
  select case when v_row.disabled_at is null then 'failed' else 'disabled' end,
         v_row.failure_count, v_row.retry_at;
end;
$$;
