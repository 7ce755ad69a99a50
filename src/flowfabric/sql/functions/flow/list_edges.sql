-- List the edges of a flow in id order. The list begins after the edge p_after. p_upstream_id
-- limits the list to edges out of one member, p_downstream_id to edges into one member. Returns no
-- rows if the flow does not exist.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_edges;
create function ff.list_edges(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid,
  p_upstream_id   uuid default null,
  p_downstream_id uuid default null,
  p_after         uuid default null,
  p_limit         integer default 1000
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
declare
  v_after constant uuid := coalesce(p_after, '00000000-0000-0000-0000-000000000000');
begin
  perform ff._check_namespace(p_namespace);
  if p_limit is null or p_limit not between 1 and 10000 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'limit', 'problem', 'must be 1 to 10000'));
  end if;
  if not exists (
    select from ff.flow f
    where f.partition_key = p_partition_key and f.flow_id = p_flow_id
      and case when p_namespace is null then true else f.namespace = p_namespace end) then
    return;
  end if;
  if p_upstream_id is null and p_downstream_id is null then
    return query
    select g.edge_id, g.upstream_id, g.downstream_id, g.group_no, g.kind::text, g.data_passing_ref,
           g.created_at, g.created_by, g.applied_at, g.resolution::text, g.outcome::text,
           g.resolved_at
    from ff.edge g
    where g.partition_key = p_partition_key and g.flow_id = p_flow_id and g.edge_id > v_after
    order by g.edge_id limit p_limit;
    return;
  end if;
  return query
  select g.edge_id, g.upstream_id, g.downstream_id, g.group_no, g.kind::text, g.data_passing_ref,
         g.created_at, g.created_by, g.applied_at, g.resolution::text, g.outcome::text,
         g.resolved_at
  from (
    select a.edge_id, a.flow_id, a.upstream_id, a.downstream_id, a.group_no, a.kind,
           a.data_passing_ref, a.created_at, a.created_by, a.applied_at, a.resolution, a.outcome,
           a.resolved_at
    from ff.edge a
    where a.partition_key = p_partition_key and a.upstream_id = p_upstream_id
    union all
    select b.edge_id, b.flow_id, b.upstream_id, b.downstream_id, b.group_no, b.kind,
           b.data_passing_ref, b.created_at, b.created_by, b.applied_at, b.resolution, b.outcome,
           b.resolved_at
    from ff.edge b
    where b.partition_key = p_partition_key and b.downstream_id = p_downstream_id
      and p_upstream_id is null) g
  where g.flow_id = p_flow_id and g.edge_id > v_after
    and (p_downstream_id is null or g.downstream_id = p_downstream_id)
  order by g.edge_id limit p_limit;
end;
$$;
