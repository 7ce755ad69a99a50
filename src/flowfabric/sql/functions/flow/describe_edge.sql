-- Read one edge of a flow. Returns no row if the flow has no edge with this id.
--
-- Moves:    nothing
-- Refuses:  (nothing)
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.describe_edge;
create function ff.describe_edge(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid,
  p_edge_id       uuid
)
returns table (
  edge_id          uuid,
  upstream_id      uuid,
  downstream_id    uuid,
  group_no         smallint,
  kind             text,
  data_passing_ref text,
  created_at       timestamptz,
  created_by       text,
  applied_at       timestamptz,
  resolution       text,
  outcome          text,
  resolved_at      timestamptz
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  return query
  select g.edge_id, g.upstream_id, g.downstream_id, g.group_no, g.kind::text, g.data_passing_ref,
         g.created_at, g.created_by, g.applied_at, g.resolution::text, g.outcome::text,
         g.resolved_at
  from ff.edge g
  join ff.flow f on f.partition_key = p_partition_key and f.flow_id = g.flow_id
  where g.partition_key = p_partition_key and g.flow_id = p_flow_id and g.edge_id = p_edge_id
    and case when p_namespace is null then true else f.namespace = p_namespace end;
end;
$$;
