-- Tell whether a quota is used up: all partitions together have no room for another execution.
-- p_is_full says that the share of the given partition has no room. It matters only if the tables
-- are distributed.
--
-- Executions in line count as if they ran, because they take free room first. If only another
-- partition has room, the new execution waits until ff.balance_gates moves an unused share.
drop function if exists ff._is_used_up;
create function ff._is_used_up(
  p_partition_key smallint, p_gate_id bigint, p_is_full boolean, p_now timestamptz)
returns boolean
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_partitions constant integer := ff._count_partitions();
  v_gate       record;
  v_limits     record;
  v_used       record;
  v_running    bigint := 0;
  v_started    bigint := 0;
  v_waiting    bigint := 0;
begin
  select g.namespace, g.quota, g.key into v_gate
  from ff.gate g where g.partition_key = p_partition_key and g.gate_id = p_gate_id;
  v_limits := ff._read_limits(v_gate.namespace, v_gate.quota, v_gate.key);
  for v_no in 0..v_partitions - 1 loop
    v_used := ff._read_usage(v_no::smallint, p_gate_id, p_now);
    v_running := v_running + v_used.running;
    v_started := v_started + v_used.started;
  end loop;
  for v_no in 0..v_partitions - 1 loop
    v_waiting := v_waiting + (
      select count(*)
      from (select from ff.execution e
            where e.partition_key = v_no and e.line_id = p_gate_id
            limit greatest(v_limits.concurrency, v_limits.rate, 1)) w);
  end loop;
  return coalesce(v_running + v_waiting >= v_limits.concurrency, false)
    or coalesce(v_started + v_waiting >= v_limits.rate, false);
end;
$$;

-- When distributed

-- This form reads only the given partition. The quota is used up if the share of this partition has
-- no room and an execution is already in line here. If none is in line yet, the new execution waits
-- for a share of another partition.
drop function if exists ff._is_used_up;
create function ff._is_used_up(
  p_partition_key smallint, p_gate_id bigint, p_is_full boolean, p_now timestamptz)
returns boolean
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  return p_is_full and exists (
    select from ff.execution e
    where e.partition_key = p_partition_key and e.line_id = p_gate_id);
end;
$$;
