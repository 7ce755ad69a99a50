-- Return the token of a waitpoint, signed with the hmac key p_kid, or null if that key does not
-- exist. The token is `ffw_` and a text in base64url. The text encodes a version, the length of
-- p_kid, p_kid itself, the partition, the execution, the waitpoint, and the HMAC-SHA256 of all
-- these parts.
drop function if exists ff._sign_waitpoint;
create function ff._sign_waitpoint(
  p_kid           text,
  p_partition_key smallint,
  p_execution_id  uuid,
  p_waitpoint_id  uuid
)
returns text
language plpgsql
stable
as $$
declare
  v_kid  constant bytea := convert_to(p_kid, 'UTF8');
  v_body constant bytea := E'\\x01'::bytea || set_byte(E'\\x00'::bytea, 0, octet_length(v_kid)) || v_kid
    || int2send(p_partition_key) || uuid_send(p_execution_id) || uuid_send(p_waitpoint_id);
  v_key  ff.hmac_key;
begin
  select k.* into v_key from ff.hmac_key k where k.kid = p_kid;
  if not found then
    return null;
  end if;
  return 'ffw_' || translate(
    encode(v_body || sha256(v_key.outer_block || sha256(v_key.inner_block || v_body)), 'base64'),
    E'+/=\n', '-_');
end;
$$;
