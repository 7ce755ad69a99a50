-- Refuse a reconciler's pass with a batch size that is out of range, or with a snapshot of the
-- transaction: it would judge parents, flows and keys by an old state.
drop function if exists ff._check_pass;
create function ff._check_pass(p_limit integer)
returns void
language plpgsql
stable
as $$
begin
  perform ff._check_limit(p_limit);
  if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'transaction_isolation', 'problem', 'must be read committed'));
  end if;
end;
$$;
