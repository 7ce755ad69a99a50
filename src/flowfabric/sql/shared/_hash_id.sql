-- Return a short hash of an id. The hash is enough to recognise the id, and does not reveal it.
drop function if exists ff._hash_id;
create function ff._hash_id(p_id uuid)
returns text
language plpgsql
immutable
as $$
begin
  return left(encode(sha256(uuid_send(p_id)), 'hex'), 16);
end;
$$;
