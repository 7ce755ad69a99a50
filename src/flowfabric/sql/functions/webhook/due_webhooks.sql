-- List the webhooks that a worker can lease now. These webhooks are enabled, no worker has their
-- lease, and after a failure the time of the next try has come.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.due_webhooks;
create function ff.due_webhooks(p_namespace text)
returns table (name text, host text)
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
  select s.name, s.host
  from ff.subscription s
  where s.webhook_id is not null and s.disabled_at is null
    and (p_namespace is null or s.namespace = p_namespace)
    and (s.lease_expires_at is null or s.lease_expires_at <= v_now)
    and (s.retry_at is null or s.retry_at <= v_now)
  order by s.name;
end;
$$;
