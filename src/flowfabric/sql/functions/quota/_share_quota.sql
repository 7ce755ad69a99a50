-- Fit the shares of the gates of a quota to the limits in force: of one key, or of all keys (null). The
-- caller holds the lock of the quota and writes the shares to the gates.
--
-- Shares shrink in proportion. They grow by what nobody holds or uses.
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
    perform ff._grow_shares(v_gate.gate_id, v_limits.concurrency, v_limits.rate, null, p_now);
  end loop;
end;
$$;
