-- Lock the gates of a quota in id order, of one key or of all keys (null), and return their ids. The
-- only place where an operator's call waits for gates.
drop function if exists ff._lock_quota_gates;
create function ff._lock_quota_gates(
  p_partition_key smallint,
  p_namespace     text,
  p_quota         text,
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
      where g.partition_key = p_partition_key and g.namespace = p_namespace and g.quota = p_quota
        and (p_key is null or g.key = p_key)
      order by g.gate_id
      for no key update) l);
end;
$$;
