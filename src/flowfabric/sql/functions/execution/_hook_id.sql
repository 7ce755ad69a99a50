-- Return the id of the execution that a hook submits for one end of an execution. The same hook and
-- the same end always give the same id.
--
-- The id is a UUIDv8, like the ids of children. It begins with the time in the id of the ended
-- execution. The rest is a digest of that id, the replay count, the name of the hook and the secret
-- of this database. No role may read the secret. So no caller can compute the id and submit another
-- execution under it.
drop function if exists ff._hook_id;
create function ff._hook_id(
  p_secret text, p_execution_id uuid, p_replay_count integer, p_name text)
returns uuid
language plpgsql
immutable
as $$
declare
  v_digits constant text := encode(sha256(
    convert_to('hook', 'UTF8') || decode('00', 'hex') || convert_to(p_secret, 'UTF8')
    || uuid_send(p_execution_id) || int8send(p_replay_count) || convert_to(p_name, 'UTF8')), 'hex');
begin
  return (left(encode(uuid_send(p_execution_id), 'hex'), 12) || '8' || left(v_digits, 3)
          || substr('89ab89ab89ab89ab', strpos('0123456789abcdef', substr(v_digits, 5, 1)), 1)
          || substr(v_digits, 6, 15))::uuid;
end;
$$;
