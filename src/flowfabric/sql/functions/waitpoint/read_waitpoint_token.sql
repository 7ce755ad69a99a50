-- Return the token of an open waitpoint, for an operator who has to send it again. Returns no row
-- if the waitpoint is closed or unknown, or if its execution has ended.
--
-- The token is the same as when the waitpoint was created, unless the hmac key that signed it no
-- longer verifies tokens. In that case the current key signs a new token.
--
-- Moves:    nothing
-- Refuses:  WF246 no_signing_key · WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   operator
drop function if exists ff.read_waitpoint_token;
create function ff.read_waitpoint_token(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_waitpoint_id  uuid
)
returns table (token text)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := ff.now();
  v_kid text;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_operator('read_waitpoint_token');
  select w.kid into v_kid
  from ff.waitpoint w
  join ff.execution e on e.partition_key = p_partition_key and e.execution_id = w.execution_id
  where w.partition_key = p_partition_key
    and w.execution_id = p_execution_id and w.waitpoint_id = p_waitpoint_id
    and w.closed_at is null and e.phase <> 'terminal'
    and case when p_namespace is null then true else e.namespace = p_namespace end;
  if found then
    select k.kid into v_kid from ff.hmac_key k
    where k.is_active or (k.kid = v_kid and k.expires_at >= v_now)
    order by k.is_active
    limit 1;
    v_kid := coalesce(v_kid, ff._require_token_key());
    return query
    select ff._sign_waitpoint(v_kid, p_partition_key, p_execution_id, p_waitpoint_id);
  end if;
end;
$$;
