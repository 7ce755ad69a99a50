-- Consume a grant. If the grant is valid for this call, delete it and return `good`. Otherwise keep
-- it and return `invalid_grant`, `other_worker` or `grant_expired`. The caller has locked the
-- execution.
drop function if exists ff._consume_grant;
create function ff._consume_grant(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_kind          ff.grant_kind,
  p_key           bytea,
  p_worker_id     text,
  p_now           timestamptz
)
returns text
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_grant ff.grant;
begin
  select g.* into v_grant from ff.grant g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id;
  if v_grant.kind is distinct from p_kind or v_grant.key_hash <> sha256(p_key) then
    return 'invalid_grant';
  elsif v_grant.worker_id <> p_worker_id then
    return 'other_worker';
  elsif v_grant.expires_at <= p_now then
    return 'grant_expired';
  end if;
  delete from ff.grant g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id;
  return 'good';
end;
$$;
