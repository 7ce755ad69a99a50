-- Return the name of the hmac key that signs new tokens. Refuses the call if there is no such key.
drop function if exists ff._require_token_key;
create function ff._require_token_key()
returns text
language plpgsql
stable
as $$
declare
  v_kid text;
begin
  select k.kid into v_kid from ff.hmac_key k where k.is_active;
  if not found then
    perform ff._refuse('WF246', 'no_signing_key', '{}');
  end if;
  return v_kid;
end;
$$;
