-- Find an API token by its SHA-256, record that it was used, and return its id, name, prefix,
-- scopes and namespace. expires_in is the time until the token expires, or null if the token never
-- expires.
--
-- The call returns no row if the token is unknown, expired or revoked. It also returns no row if
-- the login of the caller is bound to one namespace and the token belongs to another.
--
-- The time of the last use is written at most once a minute. It is not written if another
-- transaction has locked the row of the token.
--
-- Moves:    nothing
-- Refuses:  (nothing)
-- Locks:    the row of the token, if the time of use is written; a locked row is skipped
-- Repeat:   the same answer with a shorter expires_in; no row once the token has expired or was
--           revoked
-- Rights:   app
drop function if exists ff.use_api_token;
create function ff.use_api_token(p_token_hash bytea)
returns table (token_id uuid, name text, prefix text, scopes text[], namespace text,
               expires_in interval)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now     constant timestamptz := ff.now();
  v_token   ff.api_token;
  v_bound   text;
begin
  select g.namespace into v_bound from ff.namespace_grant g where g.login = session_user;
  select t.* into v_token from ff.api_token t
  where t.token_hash = p_token_hash and t.revoked_at is null
    and coalesce(t.expires_at > v_now, true)
    and t.namespace = coalesce(v_bound, t.namespace);
  if not found then
    return;
  end if;
  if coalesce(v_token.last_used_at < v_now - interval '1 minute', true) then
    update ff.api_token t set last_used_at = v_now
    from (select k.token_id from ff.api_token k where k.token_id = v_token.token_id
          for no key update skip locked) l
    where t.token_id = l.token_id;
  end if;
  return query
  select v_token.token_id, v_token.name, v_token.prefix, v_token.scopes, v_token.namespace,
         v_token.expires_at - v_now;
end;
$$;
