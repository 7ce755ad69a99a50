-- Put a subscription at another position, and raise its epoch. A consumer that has the lease loses
-- the lease: its next acknowledgement gets the answer `subscription_lost`. The next consumer that
-- takes the lease begins at the new position.
--
-- Only an operator may reset a webhook.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF312 subscription_not_found · WF501 forbidden
-- Locks:    the row of the subscription, waiting up to 2 s
-- Repeat:   the subscription is put at p_cursor again, and the epoch rises again
-- Rights:   app
drop function if exists ff.reset_subscription;
create function ff.reset_subscription(
  p_namespace text,
  p_name      text,
  p_cursor    text,
  p_reason    text default null,
  p_actor     text default null
)
returns table (outcome text, epoch bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now   timestamptz;
  v_epoch bigint;
begin
  perform ff._check_namespace(p_namespace);
  if exists (
      select from ff.subscription s
      where s.namespace = p_namespace and s.name = p_name and s.webhook_id is not null) then
    perform ff._check_operator('reset_subscription');
  end if;
  perform ff._check_actor_and_reason(p_actor, p_reason);
  if p_cursor is null or ff._cursor_problem(p_cursor) is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cursor', 'problem', coalesce(ff._cursor_problem(p_cursor), 'must be given')));
  end if;
  v_now := ff.now();
  update ff.subscription s set
    cursor_text = p_cursor,
    epoch = s.epoch + 1,
    ack_no = 0,
    holder_id = null,
    holder_name = null,
    lease_expires_at = null,
    changed_at = greatest(v_now, s.changed_at),
    changed_by = p_actor,
    reason = p_reason
  where s.namespace = p_namespace and s.name = p_name
  returning s.epoch into v_epoch;
  if not found then
    perform ff._refuse('WF312', 'subscription_not_found', jsonb_build_object(
      'subscription', p_name));
  end if;
  return query select 'reset', v_epoch;
end;
$$;
