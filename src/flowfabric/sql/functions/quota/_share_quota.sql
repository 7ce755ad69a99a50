-- Compute how the partitions share the limits of a quota, and store the shares in ff.gate_share. The
-- gates do not change: the caller copies the new shares to them. If p_key is not null, only this key
-- is shared anew. The caller has locked the quota. If there is only one partition, nothing happens.
--
-- If a limit was lowered, the call lowers all shares in proportion. If a partition still runs more
-- executions than its new share, the call lowers the unused shares of other partitions further
-- (_fit_shares). So no execution starts while more executions run than the new limit allows.
--
-- If a limit was raised, the call divides the difference evenly among all shares (_grow_shares). A
-- limit that did not exist before is divided evenly, too.
--
-- Locks: the gates by partition and id; waits for each
drop function if exists ff._share_quota;
create function ff._share_quota(p_namespace text, p_quota text, p_key text, p_now timestamptz)
returns void
language plpgsql
as $$
declare
  v_partitions constant integer := ff._count_partitions();
  v_gate       record;
  v_limits     record;
begin
  if v_partitions = 1 then
    return;
  end if;
  -- Lock the gates, so that no execution starts between the count of running executions and the new
  -- limits.
  for v_partition in 0..v_partitions - 1 loop
    perform ff._lock_quota_gates(v_partition::smallint, p_namespace, array[p_quota], p_key);
  end loop;
  for v_gate in
    select s.gate_id, s.key, sum(s.concurrency) as concurrency, sum(s.rate) as rate
    from ff.gate_share s
    where s.namespace = p_namespace and s.quota = p_quota and (p_key is null or s.key = p_key)
    group by s.gate_id, s.key
    order by s.gate_id
  loop
    v_limits := ff._read_limits(p_namespace, p_quota, v_gate.key);
    update ff.gate_share s set
      concurrency = case
        when v_limits.concurrency is null then null
        when s.concurrency is null
          then ff._even_share(v_limits.concurrency, v_partitions, s.share_no, s.gate_id)
        when v_gate.concurrency > v_limits.concurrency
          then (s.concurrency::bigint * v_limits.concurrency / v_gate.concurrency)::integer
        else s.concurrency end,
      rate = case
        when v_limits.rate is null then null
        when s.rate is null then ff._even_share(v_limits.rate, v_partitions, s.share_no, s.gate_id)
        when v_gate.rate > v_limits.rate
          then (s.rate::bigint * v_limits.rate / v_gate.rate)::integer
        else s.rate end
    where s.gate_id = v_gate.gate_id;
    perform ff._fit_shares(v_gate.gate_id, v_limits.concurrency, v_limits.rate, p_now);
    perform ff._grow_shares(v_gate.gate_id, v_limits.concurrency, v_limits.rate, null, p_now);
  end loop;
end;
$$;
