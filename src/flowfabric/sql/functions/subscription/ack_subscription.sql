-- Store the position of a subscription, and renew the lease. The consumer that has the lease calls
-- this. If p_cursor is null, the call only renews the lease.
--
-- Acknowledgements of one lease are numbered from 1. If the number of a call is not higher than the
-- last stored number, the call only renews the lease. So a late repeat never puts the position
-- back. If the lease was released, if another consumer has taken the lease, or if the subscription
-- was reset, the answer is `subscription_lost`, and nothing is stored. A lease that has expired is
-- renewed if no other consumer has taken it.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden · as outcome: subscription_lost
-- Locks:    the row of the subscription, waiting up to 2 s
-- Repeat:   `acked` again; the position is stored once, and the lease is renewed again
-- Rights:   app
drop function if exists ff.ack_subscription;
create function ff.ack_subscription(
  p_namespace text,
  p_name      text,
  p_holder_id uuid,
  p_epoch     bigint,
  p_ttl       interval,
  p_ack_no    bigint default null,
  p_cursor    text default null,
  p_count     integer default 0
)
returns table (outcome text, lease_expires_at timestamptz)
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
    when ff._is_within(p_ttl, interval '1 second', interval '1 hour') is not true
      then array['ttl', 'must be from 1 second to 1 hour']
    when (p_ack_no is null) <> (p_cursor is null) or p_ack_no < 1
      then array['ack_no', 'must be 1 or more, and be given with the cursor']
    when p_count is null or p_count < 0 then array['count', 'must be 0 or more']
    when ff._cursor_problem(p_cursor) is not null
      then array['cursor', ff._cursor_problem(p_cursor)] end;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_row := ff._lock_subscription(p_namespace, p_name);
  v_now := ff.now();
  if v_row.holder_id is distinct from p_holder_id or v_row.epoch is distinct from p_epoch
     or p_holder_id is null then
    return query select 'subscription_lost', null::timestamptz;
    return;
  end if;
  return query
  update ff.subscription s set
    lease_expires_at = v_now + p_ttl,
    cursor_text = case when p_ack_no > s.ack_no then p_cursor else s.cursor_text end,
    acked_count = case when p_ack_no > s.ack_no then s.acked_count + p_count
                       else s.acked_count end,
    acked_at = case when p_ack_no > s.ack_no then greatest(v_now, s.acked_at)
                    else s.acked_at end,
    failure_count = case when p_ack_no > s.ack_no and p_count > 0 then 0 else s.failure_count end,
    retry_at = case when p_ack_no > s.ack_no and p_count > 0 then null else s.retry_at end,
    ack_no = greatest(p_ack_no, s.ack_no)
  where s.namespace = p_namespace and s.name = p_name
  returning 'acked', s.lease_expires_at;
end;
$$;
