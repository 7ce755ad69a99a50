-- Enable a webhook again, set its failure count to 0, and let workers post its events immediately.
-- The webhook continues with the first event that its receiver has not accepted.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF313 webhook_not_found · WF501 forbidden
-- Locks:    the row of the subscription, waiting up to 2 s
-- Repeat:   the same answer; the failure count is set to 0 again
-- Rights:   operator
drop function if exists ff.enable_webhook;
create function ff.enable_webhook(
  p_namespace text,
  p_name      text,
  p_reason    text default null,
  p_actor     text default null
)
returns table (outcome text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
declare
  v_now timestamptz;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_operator('enable_webhook');
  perform ff._check_actor_and_reason(p_actor, p_reason);
  v_now := ff.now();
  update ff.subscription s set
    disabled_at = null,
    retry_at = null,
    failure_count = 0,
    changed_at = greatest(v_now, s.changed_at),
    changed_by = p_actor,
    reason = p_reason
  where s.namespace = p_namespace and s.name = p_name and s.webhook_id is not null;
  if not found then
    perform ff._refuse('WF313', 'webhook_not_found', jsonb_build_object('webhook', p_name));
  end if;
  return query select 'enabled';
end;
$$;
