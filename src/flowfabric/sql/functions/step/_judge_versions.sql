-- Judge `unknown_route` an execution that would move to the route of a code version if that route is
-- not registered. Other verdicts stay. p_versions has one entry for each verdict.
drop function if exists ff._judge_versions;
create function ff._judge_versions(
  p_partition_key smallint,
  p_judged        ff.verdict[],
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
    select case when m.route_id is null then (j.item, j.execution_id, j.word, j.until_at,
                                              j.attempt_index, j.detail)::ff.verdict
                else (j.item, j.execution_id, 'unknown_route', j.until_at, j.attempt_index,
                      jsonb_build_object(
                        'route_id', m.route_id, 'namespace', m.namespace, 'lane', m.lane,
                        'task', m.task, 'capabilities', m.capabilities,
                        'code_version', p_versions[j.item]))::ff.verdict end
    from unnest(p_judged) j
    left join lateral (
      select h.route_id, r.namespace, r.lane, r.task, r.capabilities
      from ff.execution e
      join ff.route r on r.route_id = e.route_id
      cross join lateral ff._hash_route(
        r.namespace, r.lane, r.task, r.capabilities, p_versions[j.item]) h(route_id)
      where j.word = 'held' and p_versions[j.item] is distinct from r.code_version
        and p_versions[j.item] is not null
        and e.partition_key = p_partition_key and e.execution_id = j.execution_id
        and not exists (select from ff.route x where x.route_id = h.route_id offset 0)
      offset 0) m on true
    order by j.item);
end;
$$;
