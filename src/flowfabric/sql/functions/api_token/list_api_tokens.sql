-- List tokens of the HTTP server, the highest id first. Expired and revoked tokens are listed too.
-- Neither the tokens themselves nor their hashes are returned.
--
-- If p_namespace is null, the tokens of all namespaces are listed. p_after is the last id of the
-- previous page.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   operator
drop function if exists ff.list_api_tokens;
create function ff.list_api_tokens(
  p_namespace text, p_after uuid default null, p_limit integer default 1000)
returns table (token_id uuid, prefix text, name text, scopes text[], namespace text,
               created_at timestamptz, created_by text, expires_at timestamptz,
               last_used_at timestamptz, revoked_at timestamptz, revoked_by text,
               revoked_reason text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_operator('list_api_tokens');
  perform ff._check_limit(p_limit);
  return query
  select t.token_id, t.prefix, t.name, t.scopes, t.namespace, t.created_at, t.created_by,
         t.expires_at, t.last_used_at, t.revoked_at, t.revoked_by, t.revoked_reason
  from ff.api_token t
  where t.namespace = coalesce(p_namespace, t.namespace)
    and (p_after is null or t.token_id < p_after)
  order by t.token_id desc
  limit p_limit;
end;
$$;
