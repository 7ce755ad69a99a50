-- Verify a token, without reading any row but its key. Every wrong token costs the same work and has
-- the same answer, invalid_token. token_expired is the answer only after a lapsed key has verified it.
--
-- The digest covers all that the token says. base64 of PostgreSQL ignores white space and trailing
-- bits, so the token has to be exactly what its bytes encode to.
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
  -- Work of the same size for a token that cannot be read.
  v_bytes  bytea := decode(repeat('00', 70), 'hex');
  v_body   bytea;
  v_kid    text;
  v_key    ff.hmac_key;
  v_size   integer;
  v_nonce  constant bytea := uuid_send(gen_random_uuid());
  v_shaped boolean := false;
  -- The blocks of a key that nobody has.
  v_inner  constant bytea := decode(repeat('36', 64), 'hex');
  v_outer  constant bytea := decode(repeat('5c', 64), 'hex');
begin
  -- No base64 has one letter more than a multiple of four.
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
  -- A name that no key has: bytes that are not text must not raise an error.
  v_kid := encode(substr(v_bytes, 3, v_size), 'escape');
  select k.* into v_key from ff.hmac_key k where k.kid = v_kid;
  -- The same work for every token: the address is read before the word is known. The partition of a
  -- token that is not ours may be larger than any.
  partition_key := (((get_byte(v_bytes, 2 + v_size) & 127) << 8)
                    + get_byte(v_bytes, 3 + v_size))::smallint;
  execution_id := encode(substr(v_bytes, 5 + v_size, 16), 'hex')::uuid;
  waitpoint_id := encode(substr(v_bytes, 21 + v_size, 16), 'hex')::uuid;
  word := case
    when sha256(v_nonce || sha256(coalesce(v_key.outer_block, v_outer)
                                  || sha256(coalesce(v_key.inner_block, v_inner) || v_body)))
         <> sha256(v_nonce || substr(v_bytes, 37 + v_size)) or v_key.kid is null or not v_shaped
      then 'invalid_token'
    when v_key.lapses_at < p_now then 'token_expired'
    else 'verified' end;
end;
$$;
