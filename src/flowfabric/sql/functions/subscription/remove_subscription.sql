-- Delete a subscription with its position. A consumer that has the lease loses it.
--
-- Only an operator may remove a webhook.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    the row of the subscription, waiting up to 2 s
-- Repeat:   `removed` again, because the subscription does not exist
-- Rights:   app
drop function if exists ff.remove_subscription;
create function ff.remove_subscription(p_namespace text, p_name text)
returns table (outcome text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
begin
  perform ff._check_namespace(p_namespace);
  if exists (
      select from ff.subscription s
      where s.namespace = p_namespace and s.name = p_name and s.webhook_id is not null) then
    perform ff._check_operator('remove_subscription');
  end if;
  delete from ff.subscription s where s.namespace = p_namespace and s.name = p_name;
  return query select 'removed';
end;
$$;
