-- Lock a subscription, waiting for the lock, and return its row. Return null if the subscription
-- does not exist.
drop function if exists ff._lock_subscription;
create function ff._lock_subscription(p_namespace text, p_name text)
returns ff.subscription
language plpgsql
as $$
declare
  v_row ff.subscription;
begin
  select s.* into v_row
  from ff.subscription s
  where s.namespace = p_namespace and s.name = p_name
  for no key update;
  return v_row;
end;
$$;
