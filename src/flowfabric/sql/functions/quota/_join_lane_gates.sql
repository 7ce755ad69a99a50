-- Add the gate of the lane to each execution whose lane has a limit. Returns whether the lane of at
-- least one execution has a limit. The caller has locked the executions.
--
-- p_routes are the routes of lanes with a limit. p_gates has, for each of these routes, the gate of
-- its lane.
--
-- The claim calls this, not the submit. So a limit applies to every execution that starts after the
-- limit was set, and a submit need not read the options of its lane.
drop function if exists ff._join_lane_gates;
create function ff._join_lane_gates(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_routes        bigint[],
  p_gates         bigint[]
)
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
  v_ids   uuid[];
  v_gates bigint[];
  v_found bigint[];
  v_lane  record;
begin
  select array_agg(u.id) filter (where not x.has_joined),
         array_agg(g.gate_id) filter (where not x.has_joined), array_agg(distinct g.gate_id)
    into v_ids, v_gates, v_found
  from unnest(p_execution_ids) u(id)
  cross join lateral (
    select e.route_id, e.quota_ids from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = u.id offset 0) e
  join unnest(p_routes, p_gates) g(route_id, gate_id) on g.route_id = e.route_id
  cross join lateral (select coalesce(g.gate_id = any (e.quota_ids), false) as has_joined) x;
  if v_ids is not null then
    -- A partition that was added after the limit was set does not have the gate yet.
    for v_lane in
      select distinct l.namespace, l.lane, l.gate_id
      from unnest(v_found) f(id)
      join unnest(p_routes, p_gates) g(route_id, gate_id) on g.gate_id = f.id
      join ff.route r on r.route_id = g.route_id
      join ff.lane l on l.namespace = r.namespace and l.lane = r.lane
      where not exists (
        select from ff.gate x
        where x.partition_key = p_partition_key and x.gate_id = f.id offset 0)
    loop
      perform ff._make_gate(
        p_partition_key, v_lane.gate_id, v_lane.namespace, 'ff:lane', v_lane.lane);
    end loop;
    update ff.execution e set
      quota_ids = array(
        select x.id from unnest(e.quota_ids || t.gate_id) x(id) order by x.id)
    from (select p_partition_key as pk, u.id, u.gate_id
          from unnest(v_ids, v_gates) u(id, gate_id) offset 0) t
    where e.partition_key = t.pk and e.execution_id = t.id;
  end if;
  return v_found is not null;
end;
$$;
