-- List webhooks, without their secrets. If p_name is given, only webhooks with that name are
-- listed. ff.read_lags says how far each webhook is behind.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   operator
drop function if exists ff.list_webhooks;
create function ff.list_webhooks(p_namespace text, p_name text default null)
returns table (
  namespace     text,
  name          text,
  url           text,
  host          text,
  kinds         text[],
  tasks         text[],
  has_detail    boolean,
  holder_name   text,
  acked_count   bigint,
  acked_at      timestamptz,
  failure_count integer,
  retry_at      timestamptz,
  answer        text,
  answered_at   timestamptz,
  disabled_at   timestamptz,
  created_at    timestamptz,
  changed_by    text,
  cursor_text   text
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
  perform ff._check_operator('list_webhooks');
  return query
  select s.namespace, s.name, s.url, s.host, s.kinds, s.tasks, s.has_detail,
         case when s.lease_expires_at > v_now then s.holder_name end, s.acked_count, s.acked_at,
         s.failure_count, s.retry_at, s.answer, s.answered_at, s.disabled_at, s.created_at,
         s.changed_by, s.cursor_text
  from ff.subscription s
  where s.webhook_id is not null and (p_namespace is null or s.namespace = p_namespace)
    and (p_name is null or s.name = p_name)
  order by s.namespace, s.name;
end;
$$;
