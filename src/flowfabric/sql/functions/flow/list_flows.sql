-- List flows with their progress, in id order or newest first. The list begins after the flow
-- p_after.
--
-- A call reads at most 10 000 flows and counts at most about 100 000 members. So a page can be
-- short or empty although more pages follow. The last row has no flow, only next_after: pass it as
-- p_after to get the next page. Null means that there is no next page. next_after need not be the
-- id of a listed flow.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_flows;
create function ff.list_flows(
  p_partition_key smallint,
  p_namespace     text,
  p_after         uuid default null,
  p_limit         integer default 100,
  p_newest        boolean default false
)
returns table (
  flow_id      uuid,
  namespace    text,
  flow_kind    text,
  state        text,
  node_count   integer,
  edge_count   integer,
  counts       jsonb,
  created_at   timestamptz,
  mutated_at   timestamptz,
  cancelled_at timestamptz,
  next_after   uuid
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
declare
  v_after constant uuid := coalesce(p_after, case when p_newest
    then 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid
    else '00000000-0000-0000-0000-000000000000' end);
  v_found uuid[];
  v_sizes integer[];
  v_ids   uuid[];
  v_last  uuid;
  v_seen  integer;
  v_size  bigint := 0;
  v_flow  record;
  v_count record;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  if p_newest is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'newest', 'problem', 'must be true or false'));
  end if;
  if p_newest then
    select array_agg(s.flow_id) filter (where s.is_ours),
           array_agg(s.node_count) filter (where s.is_ours), min(s.flow_id::text)::uuid, count(*)
      into v_found, v_sizes, v_last, v_seen
    from (
      select f.flow_id, f.node_count, p_namespace is null or f.namespace = p_namespace as is_ours
      from ff.flow f
      where f.partition_key = p_partition_key and f.flow_id < v_after
      order by f.flow_id desc
      limit case when p_namespace is null then p_limit else 10000 end) s;
  else
    select array_agg(s.flow_id) filter (where s.is_ours),
           array_agg(s.node_count) filter (where s.is_ours), max(s.flow_id::text)::uuid, count(*)
      into v_found, v_sizes, v_last, v_seen
    from (
      select f.flow_id, f.node_count, p_namespace is null or f.namespace = p_namespace as is_ours
      from ff.flow f
      where f.partition_key = p_partition_key and f.flow_id > v_after
      order by f.flow_id
      limit case when p_namespace is null then p_limit else 10000 end) s;
  end if;
  if p_namespace is not null and v_seen = 10000 then
    -- The last id may belong to another namespace: the next page starts slightly before it.
    if (p_newest and ff._blur(v_last, true) < v_after)
       or (not p_newest and ff._blur(v_last, false) > v_after) then
      v_last := ff._blur(v_last, p_newest);
      v_found := array(
        select u.id from unnest(v_found) with ordinality u(id, n)
        where case when p_newest then u.id >= v_last else u.id <= v_last end
        order by u.n);
    else
      v_last := coalesce(v_found[cardinality(v_found)], v_last);
    end if;
  end if;
  v_ids := '{}';
  for v_n in 1 .. coalesce(cardinality(v_found), 0) loop
    v_ids := v_ids || v_found[v_n];
    v_size := v_size + v_sizes[v_n];
    if cardinality(v_ids) = p_limit or v_size > 100000 then
      v_last := v_found[v_n];
      exit;
    end if;
  end loop;

  for v_flow in
    select f.flow_id, f.namespace, f.flow_kind, f.node_count, f.edge_count, f.created_at,
           f.mutated_at, f.cancelled_at
    from unnest(v_ids) with ordinality u(id, n)
    cross join lateral (
      select x.flow_id, x.namespace, x.flow_kind, x.node_count, x.edge_count, x.created_at,
             x.mutated_at, x.cancelled_at
      from ff.flow x
      where x.partition_key = p_partition_key and x.flow_id = u.id
      offset 0) f
    order by u.n
  loop
    v_count := ff._count_members(
      p_partition_key, v_flow.flow_id, v_flow.cancelled_at is not null);
    return query
    select v_flow.flow_id, v_flow.namespace, v_flow.flow_kind, v_count.state, v_flow.node_count,
           v_flow.edge_count, v_count.counts, v_flow.created_at, v_flow.mutated_at,
           v_flow.cancelled_at, null::uuid;
  end loop;
  next_after := case
    when p_newest and exists (
      select from ff.flow f where f.partition_key = p_partition_key and f.flow_id < v_last)
      or not p_newest and exists (
      select from ff.flow f where f.partition_key = p_partition_key and f.flow_id > v_last)
      then v_last end;
  return next;
end;
$$;
