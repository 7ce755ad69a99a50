-- List the keys that verify tokens, without their secrets. The current key comes first; it signs
-- new tokens.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   operator
drop function if exists ff.list_hmac_keys;
create function ff.list_hmac_keys()
returns table (kid text, is_active boolean, created_at timestamptz, expires_at timestamptz)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := ff.now();
begin
  perform ff._check_operator('list_hmac_keys');
  return query
  select k.kid, k.is_active, k.created_at, k.expires_at
  from ff.hmac_key k
  where k.is_active or k.expires_at >= v_now
  order by k.is_active desc, k.expires_at desc;
end;
$$;
