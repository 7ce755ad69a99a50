-- Sign new tokens with a new key, which becomes the current key. The previous key still verifies
-- its tokens for p_grace. Keys whose grace is over are deleted.
--
-- p_kid is the name of the new key. If p_secret is null, the database makes the secret. If a key
-- with this name exists, the call is refused as rotation_conflict. There is one exception: if that
-- key is the current key and p_secret is its secret, nothing changes, and the answer is
-- `unchanged`.
--
-- To see whether a key is still needed, call ff.count_waitpoints. It counts the open waitpoints of
-- each key.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF413 rotation_conflict · WF501 forbidden
-- Locks:    the table ff.hmac_key, waiting up to 2 s
-- Repeat:   `unchanged` if p_secret is given and the key is still current; otherwise WF413, because
--           the name is taken
-- Rights:   operator
drop function if exists ff.rotate_hmac_key;
create function ff.rotate_hmac_key(
  p_kid    text,
  p_grace  interval default '1 day',
  p_secret text default null
)
returns table (outcome text, kid text, previous_kid text, deleted integer)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_blocks  record;
  v_old     ff.hmac_key;
  v_same    ff.hmac_key;
  v_deleted integer := 0;
begin
  perform ff._check_operator('rotate_hmac_key');
  perform ff._check_key(p_kid, p_secret);
  if ff._is_within(p_grace, interval '0', interval '36525 days') is not true then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'grace',
      'problem', 'must be between 0 and a hundred years, in days or smaller units'));
  end if;
  lock table ff.hmac_key in share row exclusive mode;
  v_now := ff.now();
  v_blocks := ff._hmac_blocks(case
    when p_secret is null then sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
                                      || uuid_send(gen_random_uuid()))
    else decode(p_secret, 'hex') end);
  select k.* into v_old from ff.hmac_key k where k.is_active;
  select k.* into v_same from ff.hmac_key k where k.kid = p_kid;
  if v_same.kid is not null then
    if v_same.is_active and p_secret is not null and v_same.inner_block = v_blocks.inner_block then
      return query select 'unchanged', p_kid, null::text, 0;
      return;
    end if;
    perform ff._refuse('WF413', 'rotation_conflict', jsonb_build_object(
      'kid', p_kid, 'hint', 'the name was used before: choose another'));
  end if;
  with gone as (
    delete from ff.hmac_key k where k.expires_at < v_now returning k.kid
  )
  select count(*) into v_deleted from gone;
  update ff.hmac_key k set is_active = false, expires_at = v_now + p_grace where k.is_active;
  insert into ff.hmac_key (kid, inner_block, outer_block, is_active, created_at)
  values (p_kid, v_blocks.inner_block, v_blocks.outer_block, true, v_now);
  perform ff._write_audit(
    null, null, 'rotate_hmac_key', p_kid, null, jsonb_build_object('kid', v_old.kid),
    jsonb_build_object('kid', p_kid, 'grace', p_grace));
  return query select 'rotated', p_kid, v_old.kid, v_deleted;
end;
$$;
