-- Return the fingerprint of a token, in hexadecimal. The token ends with a digest of 32 bytes; the
-- fingerprint is the first 8 of them. Nobody can compute the token from its fingerprint.
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
