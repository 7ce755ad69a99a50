-- Give back the slots of executions whose leases end in this transaction: insert releases, lock
-- nothing. Every function that ends a lease calls this.
drop function if exists ff._release_gates;
create function ff._release_gates(p_partition_key smallint, p_execution_ids uuid[])
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_gates  bigint[];
  v_slots  integer[];
  v_routes bigint[];
begin
  select array_agg(s.id), array_agg(s.slots) into v_gates, v_slots
  from (
    select g.id, count(*) as slots
    from unnest(p_execution_ids) u(id)
    cross join lateral (
      select e.quota_ids from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id offset 0) x
    cross join lateral unnest(x.quota_ids) g(id)
    group by g.id) s;
  if v_gates is null then
    return;
  end if;
  insert into ff.gate_release (partition_key, gate_id, slots)
  select p_partition_key, u.id, u.slots from unnest(v_gates, v_slots) u(id, slots);
  -- Idle workers of the routes that wait for these gates.
  v_routes := array(
    select y.route_id from unnest(v_gates) g(id)
    cross join lateral (
      select l.route_id from ff.line l
      where l.partition_key = p_partition_key and l.gate_id = g.id limit 10) y
    limit 50);
  if v_routes <> '{}' then
    perform ff._hint_ready(p_partition_key, v_routes);
  end if;
end;
$$;
