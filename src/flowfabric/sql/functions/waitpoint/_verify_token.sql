-- Verify the signature of a waitpoint's token. The column `word` is `verified`, `invalid_token` or
-- `token_expired`. The other columns are valid only if `word` is `verified`. Every wrong token
-- costs the same work and gets `invalid_token`. A token that is signed with an hmac key whose grace
-- is over gets `token_expired`. The function reads no table except ff.hmac_key.
--
-- PostgreSQL's base64 decoder ignores white space and trailing bits, so several texts decode to the
-- same bytes. The decoded bytes are encoded again, and the result must equal the token.
drop function if exists ff._verify_token;
create function ff._verify_token(
  p_token           text,
  p_now             timestamptz,
  out word          text,
  out partition_key smallint,
  out execution_id  uuid,
  out waitpoint_id  uuid
)
returns record
language plpgsql
volatile
as $$
declare
  -- A token that cannot be read is checked with these bytes, so that it costs the same work.
  v_bytes  bytea := decode(repeat('00', 70), 'hex');
  v_body   bytea;
  v_kid    text;
  v_key    ff.hmac_key;
  v_size   integer;
  v_nonce  constant bytea := uuid_send(gen_random_uuid());
  v_shaped boolean := false;
  -- If the key is unknown, these blocks are used; no key has them.
  v_inner  constant bytea := decode(repeat('36', 64), 'hex');
  v_outer  constant bytea := decode(repeat('5c', 64), 'hex');
begin
  -- The length of base64 text is never one more than a multiple of four.
  if p_token ~ '^ffw_[A-Za-z0-9_-]{92,144}$' and length(p_token) % 4 <> 1 then
    v_bytes := decode(
      translate(substr(p_token, 5), '-_', '+/')
      || repeat('=', (4 - length(p_token) % 4) % 4), 'base64');
    v_size := get_byte(v_bytes, 1);
    v_shaped := get_byte(v_bytes, 0) = 1 and v_size between 1 and 32
      and octet_length(v_bytes) = 68 + v_size
      and 'ffw_' || translate(encode(v_bytes, 'base64'), E'+/=\n', '-_') = p_token;
  end if;
  if not v_shaped then
    v_bytes := decode(repeat('00', 70), 'hex');
    v_size := 2;
  end if;
  v_body := substr(v_bytes, 1, 36 + v_size);
  -- Bytes that are not text must not raise an error: they are escaped, which makes a name that no
  -- key has.
  v_kid := encode(substr(v_bytes, 3, v_size), 'escape');
  select k.* into v_key from ff.hmac_key k where k.kid = v_kid;
  -- Decode the address before the token is known to be valid, so that every token costs the same
  -- work. The partition in a forged token may be larger than any partition.
  partition_key := (((get_byte(v_bytes, 2 + v_size) & 127) << 8)
                    + get_byte(v_bytes, 3 + v_size))::smallint;
  execution_id := encode(substr(v_bytes, 5 + v_size, 16), 'hex')::uuid;
  waitpoint_id := encode(substr(v_bytes, 21 + v_size, 16), 'hex')::uuid;
  word := case
    when sha256(v_nonce || sha256(coalesce(v_key.outer_block, v_outer)
                                  || sha256(coalesce(v_key.inner_block, v_inner) || v_body)))
         <> sha256(v_nonce || substr(v_bytes, 37 + v_size)) or v_key.kid is null or not v_shaped
      then 'invalid_token'
    when v_key.expires_at < p_now then 'token_expired'
    else 'verified' end;
end;
$$;
