-- Lock gates in id order, and return the gates that were locked. If p_wait is true, the call waits
-- for each gate. Otherwise gates that other transactions have locked are skipped.
--
-- Pass true only if the transaction has not yet locked a gate with a higher id in the same
-- partition. So two transactions never wait for each other.
drop function if exists ff._lock_gates;
create function ff._lock_gates(p_partition_key smallint, p_gate_ids bigint[], p_wait boolean)
returns bigint[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  if p_wait then
    return array(
      select l.gate_id
      from (select distinct u.id from unnest(p_gate_ids) u(id) order by u.id offset 0) i
      cross join lateral (
        select g.gate_id from ff.gate g
        where g.partition_key = p_partition_key and g.gate_id = i.id
        for no key update) l);
  end if;
  return array(
    select l.gate_id
    from (select distinct u.id from unnest(p_gate_ids) u(id) order by u.id offset 0) i
    cross join lateral (
      select g.gate_id from ff.gate g
      where g.partition_key = p_partition_key and g.gate_id = i.id
      for no key update skip locked) l);
end;
$$;
