-- Read the results of the upstreams of executions. Returns one row for each edge into one of the
-- executions. The rows of one execution are in the order in which its edges were resolved. A row
-- has the result if the upstream succeeded.
--
-- is_counted means that the edge was satisfied when its group was decided. Later results can be
-- read too. But a handler that uses only counted results sees the same inputs in every attempt.
--
-- If an upstream was replayed, its row has the earlier result until the upstream has succeeded
-- again. An execution that had started before the second success keeps the earlier result.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.read_inputs;
create function ff.read_inputs(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[]
)
returns table (
  execution_id    uuid,
  upstream_id     uuid,
  node_name       text,
  group_no        smallint,
  edge_id         uuid,
  is_counted      boolean,
  resolved_at     timestamptz,
  result_encoding text,
  result          bytea
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(cardinality(p_execution_ids), '{}');
  return query
  select d.execution_id, g.upstream_id, b.node_name, g.group_no, g.edge_id,
         coalesce(g.resolution = 'satisfied' and g.resolved_at <= y.fired_at, false), g.resolved_at,
         u.result_encoding, u.result
  from (select distinct x.id from unnest(p_execution_ids) x(id)) i
  cross join lateral (
    select e.execution_id from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = i.id
      and case when p_namespace is null then true else e.namespace = p_namespace end
    offset 0) d
  cross join lateral (
    select x.upstream_id, x.group_no, x.edge_id, x.resolution, x.resolved_at, x.kept_version
    from ff.edge x
    where x.partition_key = p_partition_key and x.downstream_id = d.execution_id
    offset 0) g
  left join lateral (
    select x.fired_at from ff.edge_group x
    where x.partition_key = p_partition_key and x.downstream_id = d.execution_id
      and x.group_no = g.group_no
    offset 0) y on true
  left join lateral (
    select x.result_encoding, x.result from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = g.upstream_id
      and g.resolution = 'satisfied' and g.kept_version is null
    union all
    select x.result_encoding, x.result from ff.kept_result x
    where x.partition_key = p_partition_key and x.execution_id = g.upstream_id
      and x.version = g.kept_version
    offset 0) u on true
  left join lateral (
    select x.node_name from ff.execution_body x
    where x.partition_key = p_partition_key and x.execution_id = g.upstream_id
    offset 0) b on true
  order by d.execution_id, g.resolved_at, g.edge_id;
end;
$$;
