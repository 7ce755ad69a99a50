-- Give every partition a share of a gate. The first call for a gate splits its limits evenly. A
-- later call leaves these shares as they are, and gives a share of 0 to partitions that were added
-- since then. The caller has locked the quota.
drop function if exists ff._split_gate;
create function ff._split_gate(
  p_gate_id    bigint,
  p_namespace  text,
  p_quota      text,
  p_key        text,
  p_partitions integer
)
returns void
language plpgsql
as $$
declare
  v_limits constant record := ff._read_limits(p_namespace, p_quota, p_key);
  v_is_new constant boolean := not exists (
    select from ff.gate_share s where s.gate_id = p_gate_id);
begin
  insert into ff.gate_share (gate_id, share_no, namespace, quota, key, concurrency, rate)
  select p_gate_id, n, p_namespace, p_quota, p_key,
         case when v_is_new or v_limits.concurrency is null
           then ff._even_share(v_limits.concurrency, p_partitions, n, p_gate_id) else 0 end,
         case when v_is_new or v_limits.rate is null
           then ff._even_share(v_limits.rate, p_partitions, n, p_gate_id) else 0 end
  from generate_series(0, p_partitions - 1) n
  on conflict (gate_id, share_no) do nothing;
end;
$$;
