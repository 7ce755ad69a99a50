-- Return the key with which HTTP servers sign the leases of their workers. All servers of a
-- database share the key, so that any server can answer any call.
--
-- The first call makes the key inside the database. If a client sent the key instead, the key could
-- reach the log of the database.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none; the first call waits for a concurrent first call, without a limit
-- Repeat:   the same key
-- Rights:   app
drop function if exists ff.read_server_key;
create function ff.read_server_key(p_namespace text)
returns bytea
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_key text;
begin
  perform ff._check_namespace(p_namespace);
  select m.value into v_key from ff.meta m where m.name = 'server_key';
  if v_key is null then
    v_key := encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
                           || uuid_send(gen_random_uuid())), 'hex');
    insert into ff.meta (name, value) values ('server_key', v_key) on conflict do nothing;
    select m.value into v_key from ff.meta m where m.name = 'server_key';
  end if;
  return decode(v_key, 'hex');
end;
$$;
