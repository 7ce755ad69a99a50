-- Judge submitted items whose tasks have limits. The verdict is `invalid` in three cases: the item
-- leaves out a limit of its task, it names a limit without the key that the limit needs, or it
-- names a limit with a key although the limit has no keys. Other items get no verdict.
--
-- The arrays and options are the same as in submit_executions, and the gates that they name exist.
-- Items in p_skip are left out. Call this only if one of the routes is limited.
drop function if exists ff._judge_limits;
create function ff._judge_limits(
  p_partition_key smallint,
  p_namespace     text,
  p_skip          integer[],
  p_execution_ids uuid[],
  p_route_ids     bigint[],
  p_options       jsonb[]
)
returns ff.verdict[]
language plpgsql
stable
as $$
declare
  v_route_id constant bigint := case when cardinality(p_route_ids) = 1 then p_route_ids[1] end;
  v_options  constant jsonb := case when cardinality(p_options) = 1 then p_options[1] end;
  v_named    constant bigint[] := array(
    select distinct i.id::bigint
    from unnest(p_options) o(v)
    cross join lateral jsonb_array_elements_text(nullif(o.v -> 'quotas', 'null')) i(id));
  v_gates    jsonb;
begin
  -- Read the gates first: a query on partitioned tables must read no other table here (shape 12 in
  -- sql/README.md).
  v_gates := (
    select jsonb_object_agg(g.gate_id, jsonb_build_array(g.quota, g.key)) from ff.gate g
    where g.partition_key = p_partition_key and g.gate_id = any (v_named));
  return coalesce((
    select array_agg(row(u.n, u.id, 'invalid', null, null, m.detail)::ff.verdict)
    from unnest(p_execution_ids, p_route_ids, p_options) with ordinality u(id, route_id, options, n)
    join ff.route r on r.route_id = coalesce(u.route_id, v_route_id) and r.is_limited
    join ff.task t on t.namespace = p_namespace and t.task = r.task
    cross join lateral (
      select jsonb_build_object(
               'field', l.value ->> 'kind' || 's',
               'problem', format(
                 'the task %s counts under the %s %s: register its gate%s, and name its id here',
                 t.task, l.value ->> 'kind', l.value ->> 'name',
                 case when not (l.value ->> 'is_keyed')::boolean then ''
                      when l.value ->> 'argument' is null then ' with its key'
                      else format(' with the argument %s as its key', l.value ->> 'argument') end))
               as detail
      from jsonb_array_elements(t.limits) with ordinality l(value, n)
      where not exists (
        select
        from jsonb_array_elements_text(nullif(
          coalesce(u.options, v_options) -> (l.value ->> 'kind' || 's'), 'null')) i(id)
        left join ff.budget b on l.value ->> 'kind' = 'budget' and b.budget_id = i.id::bigint
        cross join lateral (
          select coalesce(b.budget, v_gates -> i.id::bigint::text ->> 0) as name,
                 coalesce(b.key, v_gates -> i.id::bigint::text ->> 1) as key) k
        where k.name = l.value ->> 'name' and (k.key <> '') = (l.value ->> 'is_keyed')::boolean)
      order by l.n
      limit 1) m
    where u.n <> all (p_skip)), '{}');
end;
$$;
