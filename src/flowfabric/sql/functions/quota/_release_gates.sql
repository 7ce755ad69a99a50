-- Give back the slots of executions whose leases end in this transaction: insert releases, lock
-- nothing. Every function that ends a lease calls this. Returns the executions that have a stream, to
-- be closed: they are read here anyway.
drop function if exists ff._release_gates;
create function ff._release_gates(p_partition_key smallint, p_execution_ids uuid[])
returns uuid[]
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
  v_streaming uuid[];
begin
  select array_agg(s.gate_id) filter (where s.gate_id is not null),
         array_agg(s.slots) filter (where s.gate_id is not null),
         array_agg(s.streaming_id) filter (where s.streaming_id is not null)
    into v_gates, v_slots, v_streaming
  from (
    select g.id as gate_id, case when g.id is null then x.streaming_id end as streaming_id,
           count(*) as slots
    from unnest(p_execution_ids) u(id)
    cross join lateral (
      select e.quota_ids, case when e.has_stream then e.execution_id end as streaming_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id offset 0) x
    cross join lateral (
      select q.id from unnest(x.quota_ids) q(id) union all select null) g
    group by 1, 2) s;
  if v_gates is null then
    return v_streaming;
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
  return v_streaming;
end;
$$;
