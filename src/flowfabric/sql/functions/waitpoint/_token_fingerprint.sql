-- Return the fingerprint of a token: the first 8 of the 32 bytes of its digest, in hexadecimal.
-- Nobody can compute the token from its fingerprint.
drop function if exists ff._token_fingerprint;
create function ff._token_fingerprint(p_token text)
returns text
language plpgsql
immutable
as $$
declare
  v_bytes constant bytea := decode(
    translate(substr(p_token, 5), '-_', '+/') || repeat('=', (4 - length(p_token) % 4) % 4),
    'base64');
begin
  return encode(substr(v_bytes, octet_length(v_bytes) - 31, 8), 'hex');
end;
$$;
