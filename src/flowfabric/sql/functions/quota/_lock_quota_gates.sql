-- Lock the gates of quotas in one partition, in id order, and return their ids. The call waits for
-- each gate. p_key chooses the gate of one key in each quota; null means all keys.
drop function if exists ff._lock_quota_gates;
create function ff._lock_quota_gates(
  p_partition_key smallint,
  p_namespace     text,
  p_quotas        text[],
  p_key           text
)
returns bigint[]
language plpgsql
as $$
begin
  return array(
    select l.gate_id
    from (
      select g.gate_id from ff.gate g
      where g.partition_key = p_partition_key and g.namespace = p_namespace
        and g.quota = any (p_quotas)
        and (p_key is null or g.key = p_key)
      order by g.gate_id
      for no key update) l);
end;
$$;
