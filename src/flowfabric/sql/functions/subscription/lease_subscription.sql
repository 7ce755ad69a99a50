-- Take or renew the lease on a subscription. Only one consumer has the lease at a time. Create the
-- subscription if it does not exist.
--
-- The consumer makes its holder id. A call with the id of the last holder renews the lease and keeps
-- the epoch. A call with another id gets the lease only if the lease was released or has expired;
-- then the epoch rises. Otherwise the answer is `busy`. A call that gets or renews the lease also
-- replaces the stored filters and options.
--
-- A new subscription begins at p_cursor. If the subscription does not exist and p_cursor is null,
-- the answer is `unknown`, and nothing is stored.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF227 too_many_subscriptions · WF228 is_webhook · WF501 forbidden
--           · as outcome: busy
-- Locks:    the row of the subscription, waiting up to 2 s
-- Repeat:   `leased`, with the same epoch; the lease is renewed
-- Rights:   app
drop function if exists ff.lease_subscription;
create function ff.lease_subscription(
  p_namespace     text,
  p_name          text,
  p_holder_id     uuid,
  p_holder_name   text,
  p_ttl           interval,
  p_kinds         text[] default null,
  p_tasks         text[] default null,
  p_lanes         text[] default null,
  p_instance_tags text[] default null,
  p_on_expiry     text default 'stop',
  p_keep          interval default '7 days',
  p_cursor        text default null
)
returns table (
  outcome          text,
  epoch            bigint,
  cursor_text      text,
  holder_name      text,
  lease_expires_at timestamptz,
  is_new           boolean
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
  v_is_new  boolean := false;
begin
  perform ff._check_namespace(p_namespace);
  v_problem := coalesce(
    ff._subscription_problem(p_namespace, p_name, p_kinds, p_tasks, p_lanes, p_instance_tags,
                             p_on_expiry, p_keep),
    case when p_holder_id is null then array['holder_id', 'must be given']
         when p_holder_name is null or octet_length(p_holder_name) > 256
           then array['holder_name', 'must be at most 256 bytes']
         when ff._is_within(p_ttl, interval '1 second', interval '1 hour') is not true
           then array['ttl', 'must be from 1 second to 1 hour']
         when ff._cursor_problem(p_cursor) is not null
           then array['cursor', ff._cursor_problem(p_cursor)] end);
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;

  v_row := ff._lock_subscription(p_namespace, p_name);
  v_now := ff.now();
  if v_row.name is null then
    if p_cursor is null then
      return query select 'unknown', null::bigint, null::text, null::text, null::timestamptz, false;
      return;
    end if;
    if (select count(*) from ff.subscription s where s.namespace = p_namespace) >= 100 then
      perform ff._refuse('WF227', 'too_many_subscriptions', jsonb_build_object(
        'namespace', p_namespace, 'most', 100,
        'hint', 'remove subscriptions that nobody reads: flowfabric subscription rm'));
    end if;
    insert into ff.subscription (namespace, name, cursor_text, on_expiry, keep, created_at)
    values (p_namespace, p_name, p_cursor, p_on_expiry, p_keep, v_now)
    on conflict (namespace, name) do nothing;
    v_is_new := found;
    v_row := ff._lock_subscription(p_namespace, p_name);
  end if;
  if v_row.webhook_id is not null then
    perform ff._refuse('WF228', 'is_webhook', jsonb_build_object(
      'subscription', p_name, 'hint', 'workers post its events; choose another name'));
  end if;
  if v_row.holder_id <> p_holder_id and v_row.lease_expires_at > v_now then
    return query
    select 'busy', v_row.epoch, null::text, v_row.holder_name, v_row.lease_expires_at, false;
    return;
  end if;
  return query
  update ff.subscription s set
    holder_id = p_holder_id,
    holder_name = p_holder_name,
    lease_expires_at = v_now + p_ttl,
    epoch = case when s.holder_id = p_holder_id then s.epoch else s.epoch + 1 end,
    ack_no = case when s.holder_id = p_holder_id then s.ack_no else 0 end,
    kinds = p_kinds,
    tasks = p_tasks,
    lanes = p_lanes,
    instance_tags = p_instance_tags,
    on_expiry = p_on_expiry,
    keep = p_keep
  where s.namespace = p_namespace and s.name = p_name
  returning 'leased', s.epoch, s.cursor_text, s.holder_name, s.lease_expires_at, v_is_new;
end;
$$;
