-- Judge whether each execution can move to the route with its new code version. If that route is
-- not registered, the verdict is `unknown_route`. p_versions has one entry for each execution. An
-- execution with a null entry is not judged. Returns verdicts on refused executions only.
drop function if exists ff._judge_versions;
create function ff._judge_versions(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_versions      text[]
)
returns ff.verdict[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  return array(
    select (u.n, u.id, 'unknown_route', null, null, jsonb_build_object(
             'route_id', m.route_id, 'namespace', m.namespace, 'lane', m.lane, 'task', m.task,
             'capabilities', m.capabilities, 'code_version', u.version))::ff.verdict
    from unnest(p_execution_ids, p_versions) with ordinality u(id, version, n)
    cross join lateral (
      select h.route_id, r.namespace, r.lane, r.task, r.capabilities
      from ff.execution e
      join ff.route r on r.route_id = e.route_id
      cross join lateral ff._hash_route(
        r.namespace, r.lane, r.task, r.capabilities, u.version) h(route_id)
      where u.version is distinct from r.code_version
        and e.partition_key = p_partition_key and e.execution_id = u.id
        and not exists (select from ff.route x where x.route_id = h.route_id offset 0)
      offset 0) m
    where u.version is not null);
end;
$$;
