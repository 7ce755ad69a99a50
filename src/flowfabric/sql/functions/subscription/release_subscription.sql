-- Release the lease on a subscription, so that the next consumer need not wait until the lease
-- expires. If the caller does not have the lease, nothing changes, and the answer is still
-- `released`.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    the row of the subscription, waiting up to 2 s
-- Repeat:   `released` again; another holder keeps its lease
-- Rights:   app
drop function if exists ff.release_subscription;
create function ff.release_subscription(
  p_namespace text,
  p_name      text,
  p_holder_id uuid,
  p_epoch     bigint
)
returns table (outcome text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
begin
  perform ff._check_namespace(p_namespace);
  update ff.subscription s set holder_id = null, holder_name = null, lease_expires_at = null
  where s.namespace = p_namespace and s.name = p_name and s.holder_id = p_holder_id
    and s.epoch = p_epoch;
  return query select 'released';
end;
$$;
