-- Move executions to the routes with their new code versions. p_versions has one entry for each
-- execution; null stands for the route without a code version. An execution stays on its route if
-- it has steps and its entry is null, or if it has no steps and its entry is a version. The caller
-- has locked the executions.
drop function if exists ff._move_to_versions;
create function ff._move_to_versions(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_versions      text[]
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  update ff.execution e set route_id = m.route_id
  from (
    select u.id, h.route_id
    from unnest(p_execution_ids, p_versions) u(id, version)
    cross join lateral (
      select x.route_id from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = u.id
      offset 0) o
    cross join lateral (
      select y.namespace, y.lane, y.task, y.capabilities, y.code_version from ff.route y
      where y.route_id = o.route_id
      offset 0) r
    cross join lateral ff._hash_route(
      r.namespace, r.lane, r.task, r.capabilities, u.version) h(route_id)
    where u.version is distinct from r.code_version
      and (u.version is not null) = exists (
        select from ff.step s
        where s.partition_key = p_partition_key and s.execution_id = u.id
        offset 0)
    offset 0) m
  where e.partition_key = p_partition_key and e.execution_id = m.id;
end;
$$;
