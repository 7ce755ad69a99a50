-- Refuse a pass of a reconciler if its batch size is out of range or its snapshot is old. With an
-- old snapshot the pass would work on past states of parents, flows and keys.
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
