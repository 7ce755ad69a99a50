-- Refuse a reconciler's pass with a batch size that is out of range, or with an old snapshot: it
-- would judge parents, flows and keys of all namespaces by what they were.
--
-- A call that is its own transaction has a new snapshot at any isolation level.
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
      'field', 'transaction_isolation', 'problem', 'must be read committed in a transaction'));
  end if;
end;
$$;
