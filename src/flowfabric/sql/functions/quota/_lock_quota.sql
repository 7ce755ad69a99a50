-- Lock a quota, waiting for the lock, and return it. Refuse the call with quota_not_found if the
-- quota does not exist. Refuse the call with invalid_input if a key is given but the quota has no
-- keys.
drop function if exists ff._lock_quota;
create function ff._lock_quota(p_namespace text, p_quota text, p_key text)
returns ff.quota
language plpgsql
as $$
declare
  v_quota ff.quota;
begin
  select q.* into v_quota from ff.quota q
  where q.namespace = p_namespace and q.quota = p_quota
  for no key update;
  if not found then
    perform ff._refuse('WF306', 'quota_not_found', jsonb_build_object('quota', p_quota));
  end if;
  if p_key <> '' and not v_quota.is_keyed then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'key', 'problem', 'the quota has no keys: leave the key out'));
  end if;
  return v_quota;
end;
$$;
