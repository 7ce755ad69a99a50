-- Copy the results of upstreams into the payloads of members. Each of these members has a group
-- that has just been satisfied. Only edges with a data_passing_ref pass results. The caller has
-- locked the members.
--
-- A payload takes one result. In an all_of group, it is the result of the edge that was satisfied
-- last. In any other group, it is the result of the edge that decided the group. If several groups
-- could provide the result, the call takes it from the group that was decided last. Among groups
-- that were decided at the same time, the call takes it from the group with the highest number.
--
-- If there is no result, or if the member has ended, the payload stays as it is.
drop function if exists ff._copy_results_to_members;
create function ff._copy_results_to_members(
  p_partition_key  smallint,
  p_downstream_ids uuid[],
  p_group_nos      smallint[],
  p_now            timestamptz
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
declare
  v_ids   uuid[];
  v_flows uuid[];
  v_edges uuid[];
begin
  select array_agg(p.id), array_agg(p.flow_id), array_agg(p.edge_id) into v_ids, v_flows, v_edges
  from (
    select distinct on (u.id) u.id, w.flow_id, w.edge_id
    from unnest(p_downstream_ids, p_group_nos) u(id, group_no)
    cross join lateral (
      select z.policy, z.fired_k, z.fired_at from ff.edge_group z
      where z.partition_key = p_partition_key and z.downstream_id = u.id
        and z.group_no = u.group_no
        and case when z.state = 'satisfied' then true else false end
      offset 0) y
    cross join lateral (
      select s.flow_id, s.edge_id, s.data_passing_ref
      from (
        select g.flow_id, g.edge_id, g.data_passing_ref,
               row_number() over (order by g.resolved_at, g.edge_id) as nth
        from ff.edge g
        where g.partition_key = p_partition_key and g.downstream_id = u.id
          and g.group_no = u.group_no
          and case when g.resolution = 'satisfied' and g.resolved_at <= y.fired_at
                then true else false end) s
      where case when y.policy = 'all_of' then s.data_passing_ref <> '' else s.nth = y.fired_k end
      order by s.nth desc
      limit 1) w
    where w.data_passing_ref <> ''
    order by u.id, y.fired_at desc, u.group_no desc
  ) p;
  if v_ids is null then
    return;
  end if;

  with item as materialized (
    select p_partition_key as pk, u.id, r.result, r.result_encoding,
           octet_length(r.result) <= 256 and b.trace_context is null as is_small,
           b.execution_id is not null as has_body
    from unnest(v_ids, v_flows, v_edges) u(id, flow_id, edge_id)
    cross join lateral (
      -- Read the edge together with the result, because the upstream may be replayed meanwhile.
      select o.upstream_id, o.kept_version from ff.edge o
      where o.partition_key = p_partition_key and o.flow_id = u.flow_id and o.edge_id = u.edge_id
      offset 0) g
    cross join lateral (
      select e.result, e.result_encoding from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = g.upstream_id
        and g.kept_version is null
      union all
      select k.result, k.result_encoding from ff.kept_result k
      where k.partition_key = p_partition_key and k.execution_id = g.upstream_id
        and k.version = g.kept_version
      offset 0) r
    cross join lateral (
      select e.phase from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
      offset 0) x
    left join lateral (
      -- The trace context is stored beside the payload: a claim reads both in one place.
      select o.execution_id, o.trace_context from ff.execution_body o
      where o.partition_key = p_partition_key and o.execution_id = u.id
      offset 0) b on true
    where r.result is not null and x.phase <> 'terminal'
    offset 0
  ),
  passed as (
    update ff.execution e set
      payload = case when i.is_small then i.result end,
      payload_encoding = i.result_encoding,
      has_payload = true,
      has_body = i.has_body or not i.is_small,
      mutated_at = greatest(p_now, e.mutated_at)
    from item i
    where e.partition_key = i.pk and e.execution_id = i.id
  )
  insert into ff.execution_body as o (partition_key, execution_id, payload)
  select p_partition_key, i.id, case when not i.is_small then i.result end
  from item i
  where i.has_body or not i.is_small
  on conflict (partition_key, execution_id) do update set payload = excluded.payload;
end;
$$;
