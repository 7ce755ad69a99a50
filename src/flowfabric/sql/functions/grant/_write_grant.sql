-- Store a grant, and replace an expired one. The caller has locked the execution and checked that
-- the execution has no live grant.
drop function if exists ff._write_grant;
create function ff._write_grant(
  p_partition_key      smallint,
  p_execution_id       uuid,
  p_kind               ff.grant_kind,
  p_key                bytea,
  p_worker_id          text,
  p_worker_instance_id text,
  p_now                timestamptz,
  p_grant_ttl          interval
)
returns void
language plpgsql
as $$
begin
  insert into ff.grant (
    partition_key, execution_id, kind, key_hash, worker_id, worker_instance_id, issued_at,
    expires_at)
  values (p_partition_key, p_execution_id, p_kind, sha256(p_key), p_worker_id,
          p_worker_instance_id, p_now, p_now + p_grant_ttl)
  on conflict (partition_key, execution_id) do update
    set (kind, key_hash, worker_id, worker_instance_id, issued_at, expires_at)
      = (excluded.kind, excluded.key_hash, excluded.worker_id, excluded.worker_instance_id,
         excluded.issued_at, excluded.expires_at);
end;
$$;
