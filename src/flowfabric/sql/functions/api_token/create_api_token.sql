-- Store a new API token.
--
-- The caller makes the token and sends only its SHA-256, so that the token reaches neither this
-- database nor its log. p_prefix is the beginning of the token. Lists of tokens show it. If p_ttl
-- is null, the token never expires.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden
-- Locks:    none; waits up to 2 s for a concurrent call that creates the same token
-- Repeat:   the first answer again; nothing is written
-- Rights:   operator
drop function if exists ff.create_api_token;
create function ff.create_api_token(
  p_namespace  text,
  p_token_id   uuid,
  p_token_hash bytea,
  p_prefix     text,
  p_name       text,
  p_scopes     text[],
  p_ttl        interval default null,
  p_actor      text default null)
returns table (outcome text, token_id uuid, created_at timestamptz, expires_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     constant timestamptz := ff.now();
  v_known   constant text[] := array['admin', 'operate', 'read', 'signal', 'submit', 'work'];
  v_field   text;
  v_problem text;
begin
  perform ff._check_operator('create_api_token');
  perform ff._check_actor_and_reason(p_actor, null);
  if p_namespace is null or p_namespace !~ E'^[^\x01-\x20\x7f]+$'
     or octet_length(p_namespace) > 256 then
    v_field := 'namespace';
    v_problem := 'must be 1 to 256 bytes without whitespace or control characters';
  elsif p_token_id is null or ff._is_nil_id(p_token_id) then
    v_field := 'token_id'; v_problem := 'must be a UUID';
  elsif p_token_hash is null or octet_length(p_token_hash) <> 32 then
    v_field := 'token_hash'; v_problem := 'must be a SHA-256';
  elsif p_prefix is null or p_prefix !~ '^ffp_[A-Za-z0-9_-]{1,12}$' then
    v_field := 'prefix'; v_problem := 'must be ffp_ and 1 to 12 characters of the token';
  elsif p_name is null or p_name !~ E'^[^\x01-\x1f\x7f]+$' or octet_length(p_name) > 256 then
    v_field := 'name'; v_problem := 'must be 1 to 256 bytes without control characters';
  elsif p_scopes is null or cardinality(p_scopes) = 0 or not p_scopes <@ v_known then
    v_field := 'scopes'; v_problem := 'must be some of ' || array_to_string(v_known, ', ');
  elsif not ff._is_within(p_ttl, interval '1 microsecond', interval '3653 days') then
    v_field := 'expires';
    v_problem := 'must be more than zero and at most ten years, in days or smaller units';
  elsif exists (select from ff.api_token t
                where t.token_id = p_token_id and t.token_hash <> p_token_hash) then
    v_field := 'token_id'; v_problem := 'is the id of another token';
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_field, 'problem', v_problem));
  end if;
  insert into ff.api_token (token_id, token_hash, prefix, name, scopes, namespace, created_at,
                            created_by, expires_at)
  values (p_token_id, p_token_hash, p_prefix, p_name, p_scopes, p_namespace, v_now,
          coalesce(p_actor, session_user), v_now + p_ttl)
  on conflict (token_id) do nothing;
  if found then
    perform ff._write_audit(
      p_namespace, p_actor, 'create_api_token', p_token_id::text, null, null,
      jsonb_build_object('prefix', p_prefix, 'name', p_name, 'scopes', p_scopes,
                         'expires_at', v_now + p_ttl));
  end if;
  return query
  select 'created', t.token_id, t.created_at, t.expires_at
  from ff.api_token t where t.token_id = p_token_id;
end;
$$;
