-- Revoke a token of the HTTP server. After at most 5 s no server accepts the token.
--
-- If p_namespace is null, the token can belong to any namespace.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF315 api_token_not_found · WF501 forbidden
-- Locks:    the row of the token, waiting up to 2 s
-- Repeat:   `unchanged`, with the time of the first revocation
-- Rights:   operator
drop function if exists ff.revoke_api_token;
create function ff.revoke_api_token(
  p_namespace text, p_token_id uuid, p_reason text default null, p_actor text default null)
returns table (outcome text, token_id uuid, revoked_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_token   ff.api_token;
  v_actor   constant text := coalesce(p_actor, session_user);
begin
  perform ff._check_operator('revoke_api_token');
  perform ff._check_actor_and_reason(p_actor, p_reason);
  select t.* into v_token from ff.api_token t
  where t.token_id = p_token_id and t.namespace = coalesce(p_namespace, t.namespace)
  for no key update;
  if not found then
    perform ff._refuse('WF315', 'api_token_not_found', jsonb_build_object('token', p_token_id));
  end if;
  if v_token.revoked_at is not null then
    return query select 'unchanged', p_token_id, v_token.revoked_at;
    return;
  end if;
  v_now := ff.now();
  update ff.api_token t
  set revoked_at = v_now, revoked_by = v_actor, revoked_reason = p_reason
  where t.token_id = p_token_id;
  perform ff._write_audit(
    v_token.namespace, p_actor, 'revoke_api_token', p_token_id::text, p_reason,
    jsonb_build_object('prefix', v_token.prefix, 'name', v_token.name));
  return query select 'revoked', p_token_id, v_now;
end;
$$;
