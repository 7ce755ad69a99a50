-- Give back one slot of each gate in p_gate_ids; a gate can be listed several times. The call
-- inserts rows into ff.gate_release and locks nothing. It sends a hint to the workers of routes
-- that have executions in the lines of these gates: at most 10 routes for each gate, and 50 routes
-- in all.
drop function if exists ff._release_slots;
create function ff._release_slots(p_partition_key smallint, p_gate_ids bigint[])
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
  v_routes bigint[];
begin
  if p_gate_ids = '{}' then
    return;
  end if;
  insert into ff.gate_release (partition_key, gate_id, slots)
  select p_partition_key, u.id, count(*) from unnest(p_gate_ids) u(id) group by u.id;
  -- Send a hint to idle workers of the routes that wait for these gates.
  if exists (select from ff.line y where y.partition_key = p_partition_key) then
    v_routes := array(
      select y.route_id from (select distinct u.id from unnest(p_gate_ids) u(id)) g
      cross join lateral (
        select l.route_id from ff.line l
        where l.partition_key = p_partition_key and l.gate_id = g.id limit 10) y
      limit 50);
    if v_routes <> '{}' then
      perform ff._hint_ready(p_partition_key, v_routes);
    end if;
  end if;
end;
$$;
