-- Return the routes in p_routes that have a code version, and that no live worker of this code
-- version covers. A worker that only reads the code version does not count.
drop function if exists ff._read_unserved;
create function ff._read_unserved(p_routes bigint[], p_now timestamptz)
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
  return array(
    select r.route_id
    from (select distinct u.id from unnest(p_routes) u(id)) i
    cross join lateral (select x.* from ff.route x where x.route_id = i.id offset 0) r
    where r.code_version is not null and not exists (
      select from ff.worker w
      where w.code_version = r.code_version and w.heartbeat_at + w.liveness_ttl > p_now
        and w.namespace in ('', r.namespace) and (w.lanes is null or r.lane = any (w.lanes))
        and (w.tasks is null or r.task = any (w.tasks)) and r.capabilities <@ w.capabilities
      offset 0));
end;
$$;
