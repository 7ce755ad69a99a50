-- Install an hmac key with a secret that the caller chose. The key becomes the current key. If
-- several databases have the same key, they accept the same tokens. A program can call this
-- function at every start.
--
-- If a key with this name exists, nothing changes, and the answer is `already_seeded`. If the only
-- key is `k1`, which the migration made, the new key replaces it, and `k1` still verifies its
-- tokens for a day. If there are other keys, the call is refused: use ff.rotate_hmac_key instead.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF413 rotation_conflict · WF501 forbidden
-- Locks:    the table ff.hmac_key, waiting up to 2 s
-- Repeat:   `already_seeded`; same_secret says whether p_secret is the secret of the key
-- Rights:   operator
drop function if exists ff.seed_hmac_key;
create function ff.seed_hmac_key(p_kid text, p_secret text)
returns table (outcome text, kid text, same_secret boolean)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_blocks record;
  v_same   ff.hmac_key;
  v_now    timestamptz;
begin
  perform ff._check_operator('seed_hmac_key');
  if p_secret is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'secret', 'problem', 'must be 64 hexadecimal digits (32 bytes)'));
  end if;
  perform ff._check_key(p_kid, p_secret);
  lock table ff.hmac_key in share row exclusive mode;
  v_now := ff.now();
  v_blocks := ff._hmac_blocks(decode(p_secret, 'hex'));
  select k.* into v_same from ff.hmac_key k where k.kid = p_kid;
  if v_same.kid is not null then
    return query select 'already_seeded', p_kid, v_same.inner_block = v_blocks.inner_block;
    return;
  end if;
  if exists (select from ff.hmac_key k where k.kid <> 'k1') then
    perform ff._refuse('WF413', 'rotation_conflict', jsonb_build_object(
      'kid', p_kid, 'hint', 'another key is in use: rotate instead'));
  end if;
  update ff.hmac_key k set is_active = false, expires_at = v_now + interval '1 day'
  where k.is_active;
  insert into ff.hmac_key (kid, inner_block, outer_block, is_active, created_at)
  values (p_kid, v_blocks.inner_block, v_blocks.outer_block, true, v_now);
  return query select 'seeded', p_kid, true;
end;
$$;
