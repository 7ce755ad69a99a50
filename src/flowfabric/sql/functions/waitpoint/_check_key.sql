-- Refuse a malformed name or secret of an hmac key. A null secret is accepted.
drop function if exists ff._check_key;
create function ff._check_key(p_kid text, p_secret text)
returns void
language plpgsql
immutable
as $$
begin
  if p_kid is null or p_kid !~ '^[A-Za-z0-9._-]{1,32}$' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'kid', 'problem', 'must be 1 to 32 letters, digits, dots, dashes or underscores'));
  end if;
  if p_secret !~ '^[0-9a-fA-F]{64}$' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'secret', 'problem', 'must be 64 hexadecimal digits (32 bytes)'));
  end if;
end;
$$;
