-- Reopen impossible edges of a member before the member is replayed. An edge is impossible if its
-- upstream ended without success. A group is impossible if it can no longer be satisfied. Returns
-- the members to replay with this member, and the number of groups with a reopened edge. The caller
-- has called _lock_for_replay.
--
-- If the end of the member is not yet fully propagated, the call first finishes the propagation.
-- Then it reopens the impossible edges out of the member, so that they wait for the member again. A
-- skipped downstream that has no impossible group left is replayed too, and its edges are reopened
-- in the same way. The state of other downstreams does not change.
--
-- Impossible edges into the member are also reopened, unless their group is satisfied. Each of them
-- then waits for a later end of its upstream. The call is refused if a group of the member needs
-- more edges than the group has.
--
-- If another transaction has locked a row that the call must change, the call fails with SQLSTATE
-- 40001 and can be repeated.
drop function if exists ff._reopen_edges;
create function ff._reopen_edges(
  p_partition_key  smallint,
  p_execution_id   uuid,
  p_now            timestamptz,
  out member_ids   uuid[],
  out groups_reset integer
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
  v_reached uuid[];
  v_found   uuid[] := ff._read_reopened_members(p_partition_key, p_execution_id);
  v_pending uuid[];
  v_wakes   record;
  v_ids     uuid[];
  v_groups  smallint[];
  v_next    uuid[];
begin
  member_ids := '{}';
  groups_reset := 0;
  loop
    v_reached := v_found;
    perform 1
    from unnest(v_reached) u(id)
    cross join lateral (
      select e.execution_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
      for no key update skip locked
    ) l
    having count(*) < cardinality(v_reached);
    if found then
      raise exception using errcode = '40001', message = 'a member of the flow is busy';
    end if;
    -- First propagate the ends of the members that may be replayed, and of no others.
    v_pending := array(
      select u.id from unnest(v_reached) u(id)
      cross join lateral (
        select e.wakes_pending and (e.outcome = 'skipped' or u.id = p_execution_id) as is_pending
        from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      where x.is_pending);
    if cardinality(v_pending) > 0 then
      v_wakes := ff._propagate_end(p_partition_key, v_pending, p_now, 10000);
      if v_wakes.pending_ids is not null then
        raise exception using errcode = '40001',
          message = 'an execution that depends on the end of a member is busy';
      end if;
    end if;
    v_found := ff._read_reopened_members(p_partition_key, p_execution_id);
    exit when v_found = v_reached;
  end loop;

  v_next := array[p_execution_id];
  while cardinality(v_next) > 0 loop
    with item as materialized (
      select p_partition_key as pk, g.flow_id, g.edge_id
      from unnest(v_next) u(id)
      cross join lateral (
        select o.flow_id, o.edge_id from ff.edge o
        where o.partition_key = p_partition_key and o.upstream_id = u.id
          and case when o.resolution = 'impossible' then true else false end
        offset 0) g
      offset 0
    ),
    opened as (
      update ff.edge g set resolution = 'unsatisfied', outcome = null, resolved_at = null
      from item i
      where g.partition_key = i.pk and g.flow_id = i.flow_id and g.edge_id = i.edge_id
      returning g.downstream_id, g.group_no
    )
    select array_agg(d.downstream_id), array_agg(d.group_no) into v_ids, v_groups
    from (select distinct o.downstream_id, o.group_no from opened o) d;
    exit when v_ids is null;
    perform ff._recount_groups(p_partition_key, v_ids, v_groups, v_next);
    groups_reset := groups_reset + cardinality(v_ids);
    v_next := array(
      select distinct u.id
      from unnest(v_ids) u(id)
      cross join lateral (
        select e.outcome from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      where x.outcome = 'skipped' and u.id <> all (member_ids)
        and not exists (
          select from ff.edge_group y
          where y.partition_key = p_partition_key and y.downstream_id = u.id
            and case when y.state = 'impossible' then true else false end
          offset 0));
    member_ids := member_ids || v_next;
  end loop;

  with item as materialized (
    select p_partition_key as pk, g.flow_id, g.edge_id, x.version
    from (
      select o.flow_id, o.edge_id, o.upstream_id, o.group_no from ff.edge o
      where o.partition_key = p_partition_key and o.downstream_id = p_execution_id
        and case when o.resolution = 'impossible' then true else false end
      offset 0
    ) g
    cross join lateral (
      select y.state from ff.edge_group y
      where y.partition_key = p_partition_key and y.downstream_id = p_execution_id
        and y.group_no = g.group_no
      offset 0) z
    left join lateral (
      select e.version from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = g.upstream_id
        and case when e.phase = 'terminal' then true else false end
      offset 0) x on true
    where z.state <> 'satisfied'
    offset 0
  ),
  opened as (
    update ff.edge g set
      resolution = 'unsatisfied', outcome = null, resolved_at = null, reopened_version = i.version
    from item i
    where g.partition_key = i.pk and g.flow_id = i.flow_id and g.edge_id = i.edge_id
    returning g.downstream_id, g.group_no
  )
  select array_agg(d.downstream_id), array_agg(d.group_no) into v_ids, v_groups
  from (select distinct o.downstream_id, o.group_no from opened o) d;
  if v_ids is not null then
    perform ff._recount_groups(p_partition_key, v_ids, v_groups, '{}');
    groups_reset := groups_reset + cardinality(v_ids);
  end if;
  if exists (
    select from ff.edge_group y
    where y.partition_key = p_partition_key and y.downstream_id = p_execution_id
      and case when y.state = 'impossible' then true else false end) then
    perform ff._refuse('WF219', 'deps_not_satisfied', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id),
      'problem', 'one of its groups needs more edges than it has'));
  end if;
end;
$$;
