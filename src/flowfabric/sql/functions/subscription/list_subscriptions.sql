-- List the subscriptions that are not webhooks. If p_name is given, only the subscription with that
-- name is listed. ff.read_lags says how far each subscription is behind.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_subscriptions;
create function ff.list_subscriptions(p_namespace text, p_name text default null)
returns table (
  namespace        text,
  name             text,
  kinds            text[],
  tasks            text[],
  lanes            text[],
  instance_tags    text[],
  on_expiry        text,
  keep             interval,
  holder_name      text,
  lease_expires_at timestamptz,
  epoch            bigint,
  acked_count      bigint,
  acked_at         timestamptz,
  created_at       timestamptz,
  changed_at       timestamptz,
  changed_by       text,
  reason           text,
  cursor_text      text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := ff.now();
begin
  perform ff._check_namespace(p_namespace);
  return query
  select s.namespace, s.name, s.kinds, s.tasks, s.lanes, s.instance_tags, s.on_expiry, s.keep,
         case when s.lease_expires_at > v_now then s.holder_name end,
         case when s.lease_expires_at > v_now then s.lease_expires_at end,
         s.epoch, s.acked_count, s.acked_at, s.created_at, s.changed_at, s.changed_by, s.reason,
         s.cursor_text
  from ff.subscription s
  where s.webhook_id is null and (p_namespace is null or s.namespace = p_namespace)
    and (p_name is null or s.name = p_name)
  order by s.namespace, s.name;
end;
$$;
