-- Pass new results to the downstreams of members that have succeeded again after a replay. A
-- downstream that has started keeps the earlier result. Returns how many downstreams were
-- refreshed, and which members still have downstreams to refresh.
--
-- A result that was copied into a payload is copied again. The call waits for no lock. A locked
-- downstream is refreshed later, unless it starts before that. At most p_limit downstreams are
-- refreshed. The caller has locked the members that succeeded.
drop function if exists ff._refresh_inputs;
create function ff._refresh_inputs(
  p_partition_key smallint,
  p_ended_ids     uuid[],
  p_now           timestamptz,
  p_limit         integer,
  out handled     integer,
  out pending_ids uuid[]
)
returns record
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_stale   uuid[];
  v_members uuid[];
  v_ids     uuid[];
  v_groups  smallint[];
begin
  v_stale := array(
    select distinct w.downstream_id
    from ff._read_stale_inputs(p_partition_key, p_ended_ids) w
    order by w.downstream_id);
  -- Claims take the same lock. So a downstream that has not started yet will read the new result.
  v_members := array(
    select l.execution_id
    from unnest(v_stale) u(id)
    cross join lateral (
      select e.execution_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
        and case when e.total_attempt_count = 0 then true else false end
      for no key update skip locked
    ) l
    limit p_limit);
  handled := cardinality(v_members);
  if handled > 0 then
    with item as materialized (
      select p_partition_key as pk, g.flow_id, g.edge_id
      from unnest(p_ended_ids) u(id)
      cross join lateral (
        select e.outcome from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      cross join lateral (
        select o.flow_id, o.edge_id, o.downstream_id from ff.edge o
        where o.partition_key = p_partition_key and o.upstream_id = u.id
          and o.kept_version is not null
        offset 0) g
      where x.outcome = 'success' and g.downstream_id = any (v_members)
      offset 0
    )
    update ff.edge g set kept_version = null
    from item i
    where g.partition_key = i.pk and g.flow_id = i.flow_id and g.edge_id = i.edge_id;
    select array_agg(y.downstream_id), array_agg(y.group_no) into v_ids, v_groups
    from unnest(v_members) u(id)
    cross join lateral (
      select z.downstream_id, z.group_no from ff.edge_group z
      where z.partition_key = p_partition_key and z.downstream_id = u.id
        and case when z.state = 'satisfied' then true else false end
      offset 0) y;
    if v_ids is not null then
      perform ff._copy_results_to_members(p_partition_key, v_ids, v_groups, p_now);
    end if;

    with item as materialized (
      select p_partition_key as pk, k.execution_id, k.version
      from unnest(p_ended_ids) u(id)
      cross join lateral (
        select o.execution_id, o.version from ff.kept_result o
        where o.partition_key = p_partition_key and o.execution_id = u.id
        offset 0) k
      where not exists (
        select from ff.edge g
        where g.partition_key = p_partition_key and g.upstream_id = k.execution_id
          and g.kept_version is not null
          and case when g.kept_version = k.version then true else false end
        offset 0)
      offset 0
    )
    delete from ff.kept_result k
    using item i
    where k.partition_key = i.pk and k.execution_id = i.execution_id and k.version = i.version;
  end if;
  pending_ids := array(
    select distinct w.upstream_id from ff._read_stale_inputs(p_partition_key, p_ended_ids) w);
end;
$$;
