-- Take or renew the lease on a webhook. Only one worker has the lease at a time.
--
-- The worker makes its holder id. The epoch of the webhook counts its holders: it rises when a call
-- with another holder id gets the lease, and stays the same when the last holder renews the lease.
--
-- The answer is `busy` if another worker has the lease. It is also `busy`, even for the last holder,
-- if the webhook is disabled or waits after a failure.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF313 webhook_not_found · WF501 forbidden · as outcome: busy
-- Locks:    the row of the subscription, waiting up to 2 s
-- Repeat:   `leased`, with the same epoch; the lease is renewed
-- Rights:   app
drop function if exists ff.lease_webhook;
create function ff.lease_webhook(
  p_namespace   text,
  p_name        text,
  p_holder_id   uuid,
  p_holder_name text,
  p_ttl         interval
)
returns table (
  outcome       text,
  epoch         bigint,
  cursor_text   text,
  url           text,
  kinds         text[],
  tasks         text[],
  has_detail    boolean,
  failure_count integer
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_problem text[];
  v_row     ff.subscription;
begin
  perform ff._check_namespace(p_namespace);
  v_problem := case
    when p_holder_id is null then array['holder_id', 'must be given']
    when p_holder_name is null or octet_length(p_holder_name) > 256
      then array['holder_name', 'must be at most 256 bytes']
    when ff._is_within(p_ttl, interval '1 second', interval '1 hour') is not true
      then array['ttl', 'must be from 1 second to 1 hour'] end;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_row := ff._lock_subscription(p_namespace, p_name);
  v_now := ff.now();
  if v_row.webhook_id is null then
    perform ff._refuse('WF313', 'webhook_not_found', jsonb_build_object('webhook', p_name));
  end if;
  if v_row.disabled_at is not null or v_row.retry_at > v_now
     or (v_row.holder_id <> p_holder_id and v_row.lease_expires_at > v_now) then
    return query
    select 'busy', v_row.epoch, null::text, null::text, null::text[], null::text[], null::boolean,
           v_row.failure_count;
    return;
  end if;
  return query
  update ff.subscription s set
    holder_id = p_holder_id,
    holder_name = p_holder_name,
    lease_expires_at = v_now + p_ttl,
    epoch = case when s.holder_id = p_holder_id then s.epoch else s.epoch + 1 end,
    ack_no = case when s.holder_id = p_holder_id then s.ack_no else 0 end
  where s.namespace = p_namespace and s.name = p_name
  returning 'leased', s.epoch, s.cursor_text, s.url, s.kinds, s.tasks, s.has_detail, s.failure_count;
end;
$$;
