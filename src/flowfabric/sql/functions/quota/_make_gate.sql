-- Create the gate of one key of a quota, unless the gate exists. The new gate gets the limits in
-- force. If there are several partitions, it gets only this partition's share of the limits. To
-- create a gate, the call locks the quota, and waits for the lock.
--
-- Refuse the call with route_collision if another gate has the same id. If the number of partitions
-- was raised meanwhile, the call fails with SQLSTATE 40001 and can be repeated.
drop function if exists ff._make_gate;
create function ff._make_gate(
  p_partition_key smallint,
  p_gate_id       bigint,
  p_namespace     text,
  p_quota         text,
  p_key           text
)
returns void
language plpgsql
as $$
declare
  v_partitions integer;
  v_limits     record;
  v_share      record;
  v_known      record;
begin
  select g.namespace, g.quota, g.key into v_known
  from ff.gate g where g.partition_key = p_partition_key and g.gate_id = p_gate_id;
  if not found then
    -- Lock the quota, so that no change of its limits misses the new gate.
    v_partitions := ff._count_partitions();
    if v_partitions = 1 then
      perform 1 from ff.quota q
      where q.namespace = p_namespace and q.quota = p_quota
      for share;
    else
      perform 1 from ff.quota q
      where q.namespace = p_namespace and q.quota = p_quota
      for no key update;
    end if;
    if ff._count_partitions() <> v_partitions then
      raise exception 'the number of partitions was raised at this moment' using errcode = '40001';
    end if;
    v_limits := ff._read_limits(p_namespace, p_quota, p_key);
    if v_partitions > 1 then
      perform ff._split_gate(p_gate_id, p_namespace, p_quota, p_key, v_partitions);
    end if;
    v_share := ff._read_share(
      p_gate_id, p_partition_key, v_partitions, v_limits.concurrency, v_limits.rate);
    insert into ff.gate (
      partition_key, gate_id, namespace, quota, key, is_refusing, max_running, rate, rate_window)
    values (p_partition_key, p_gate_id, p_namespace, p_quota, p_key, v_limits.is_refusing,
            v_share.concurrency, v_share.rate, v_limits.rate_window)
    on conflict (partition_key, gate_id) do nothing;
    return;
  end if;
  if (v_known.namespace, v_known.quota, v_known.key) is distinct from
     (p_namespace, p_quota, p_key) then
    perform ff._refuse('WF402', 'route_collision', jsonb_build_object(
      'gate_id', p_gate_id, 'quota', p_quota, 'taken_by', v_known.quota,
      'hint', 'rename the quota: two gates hash to the same id'));
  end if;
end;
$$;
