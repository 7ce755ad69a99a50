-- Read the routes that have a code version and unfinished executions, in one namespace or in all.
-- Returns at most 10 000 routes. Reads one index entry for each route, not one for each execution.
drop function if exists ff._read_versioned_routes;
create function ff._read_versioned_routes(p_partition_key smallint, p_namespace text)
returns bigint[]
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_routes    bigint[] := '{}';
  v_namespace text := coalesce(p_namespace, '');
  v_route     bigint := 4611686018427387903;
begin
  loop
    -- These are two statements instead of one with `or`, so that the index walk begins at the
    -- namespace.
    if p_namespace is null then
      select e.namespace, e.route_id into v_namespace, v_route
      from ff.execution e
      where e.partition_key = p_partition_key
        and (e.namespace, e.route_id) > (v_namespace, v_route)
        and e.route_id >= 4611686018427387904 and e.phase <> 'terminal'
      order by e.namespace, e.route_id
      limit 1;
    else
      select e.route_id into v_route
      from ff.execution e
      where e.partition_key = p_partition_key and e.namespace = p_namespace
        and e.route_id > v_route and e.route_id >= 4611686018427387904 and e.phase <> 'terminal'
      order by e.route_id
      limit 1;
    end if;
    exit when not found;
    v_routes := v_routes || v_route;
    exit when cardinality(v_routes) >= 10000;
  end loop;
  return v_routes;
end;
$$;
