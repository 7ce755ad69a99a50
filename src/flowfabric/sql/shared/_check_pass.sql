-- Check a call of a reconciler. Refuse it if its batch size is out of range, or if its snapshot is
-- old. A reconciler with an old snapshot would act on past states of parents, flows and keys.
--
-- A snapshot is old if the transaction began more than 1 s ago and is at REPEATABLE READ or
-- SERIALIZABLE. A call in a transaction of its own is never refused for its snapshot.
drop function if exists ff._check_pass;
create function ff._check_pass(p_limit integer)
returns void
language plpgsql
stable
as $$
begin
  perform ff._check_limit(p_limit);
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable')
     and transaction_timestamp() < clock_timestamp() - interval '1 second' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'transaction_isolation',
      'problem', 'must be read committed in a transaction older than 1 s'));
  end if;
end;
$$;
