-- Resolve the edges out of ended executions, and apply the consequences to their downstreams. The
-- caller has locked the ended executions.
--
-- An edge is resolved once and stores its resolution, so a second propagation changes nothing. The
-- group of the edge counts the resolution. A group is decided once.
--
-- If a group of an unfinished downstream becomes impossible, the downstream is skipped (T5). If a
-- flow cancel will end the downstream anyway, this call does not skip it. If all groups of a
-- downstream are satisfied and it waits for nothing else, it becomes eligible (T4, quiet). If the
-- policy of a decided group says so, the upstreams that the group no longer needs are cancelled
-- (T23).
--
-- The call waits for no lock: the edges into a locked downstream stay unresolved. It handles at
-- most p_limit downstreams, and cancels at most p_cancel_limit siblings.
--
-- Returns how many downstreams were handled, how many siblings were cancelled, and whether siblings
-- are left to cancel. ended_ids are executions that this call has ended and whose ends the caller
-- must propagate.
drop function if exists ff._resolve_edges;
create function ff._resolve_edges(
  p_partition_key  smallint,
  p_ended_ids      uuid[],
  p_now            timestamptz,
  p_limit          integer,
  p_cancel_limit   integer,
  out handled      integer,
  out cancelled    integer,
  out ended_ids    uuid[],
  out has_siblings boolean
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
  v_upstreams   uuid[];
  v_downstreams uuid[];
  v_flows       uuid[];
  v_edges       uuid[];
  v_members     uuid[];
  v_ids         uuid[];
  v_groups      smallint[];
  v_states      ff.group_state[];
  v_cancels     boolean[];
  v_ended       uuid[] := '{}';
  v_routes      bigint[];
  v_skip        record;
  v_group       record;
  v_siblings    record;
begin
  handled := 0;
  cancelled := 0;
  ended_ids := '{}';
  has_siblings := false;
  select array_agg(p.upstream_id), array_agg(p.downstream_id), array_agg(p.flow_id),
         array_agg(p.edge_id)
    into v_upstreams, v_downstreams, v_flows, v_edges
  from (
    select g.upstream_id, g.downstream_id, g.flow_id, g.edge_id
    from unnest(p_ended_ids) u(id)
    cross join lateral (
      select e.version from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
      offset 0) x
    cross join lateral (
      select o.upstream_id, o.downstream_id, o.flow_id, o.edge_id from ff.edge o
      where o.partition_key = p_partition_key and o.upstream_id = u.id
        and o.resolution = 'unsatisfied'
        and case when o.reopened_version >= x.version then false else true end
      order by o.downstream_id
      limit p_limit) g
    limit p_limit * 10
  ) p;
  if v_upstreams is null then
    return;
  end if;
  -- Edges change only under the lock of their downstream.
  v_members := array(
    select l.execution_id
    from (select distinct d.id from unnest(v_downstreams) d(id) order by d.id) a
    cross join lateral (
      select e.execution_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = a.id
      for no key update skip locked
    ) l
    limit p_limit);
  handled := cardinality(v_members);
  if handled = 0 then
    return;
  end if;

  with item as materialized (
    select p_partition_key as pk, g.flow_id, g.edge_id, p.downstream_id, g.group_no, x.outcome,
           y.fired_at
    from (
      select distinct u.upstream_id, u.downstream_id, u.flow_id, u.edge_id
      from unnest(v_upstreams, v_downstreams, v_flows, v_edges)
        u(upstream_id, downstream_id, flow_id, edge_id)
      where u.downstream_id = any (v_members)
    ) p
    cross join lateral (
      select e.outcome, e.version from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = p.upstream_id
      offset 0) x
    cross join lateral (
      -- Look up by edge id: a lookup by both ends could read all edges into the downstream.
      select o.flow_id, o.edge_id, o.group_no from ff.edge o
      where o.partition_key = p_partition_key and o.flow_id = p.flow_id and o.edge_id = p.edge_id
        and case when o.resolution = 'unsatisfied'
                  and coalesce(o.reopened_version < x.version, true) then true else false end
      offset 0) g
    cross join lateral (
      select z.fired_at from ff.edge_group z
      where z.partition_key = p_partition_key and z.downstream_id = p.downstream_id
        and z.group_no = g.group_no
      offset 0) y
    offset 0
  ),
  resolved as (
    update ff.edge g set
      resolution = case when i.outcome = 'success' then 'satisfied'::ff.resolution
                        else 'impossible' end,
      outcome = i.outcome,
      -- If the group is decided already, store a time after the decision, because the edge did not
      -- count towards the decision.
      resolved_at = greatest(p_now, (i.fired_at at time zone 'UTC' + interval '1 microsecond')
                                      at time zone 'UTC'),
      reopened_version = null
    from item i
    where g.partition_key = i.pk and g.flow_id = i.flow_id and g.edge_id = i.edge_id
  ),
  counted as materialized (
    select i.pk, i.downstream_id, i.group_no,
           count(*) filter (where i.outcome = 'success')::integer as succeeded,
           count(*) filter (where i.outcome = 'skipped')::integer as skipped,
           count(*) filter (where i.outcome not in ('success', 'skipped'))::integer as failed
    from item i
    group by i.pk, i.downstream_id, i.group_no
    offset 0
  ),
  judged as materialized (
    select c.pk, c.downstream_id, c.group_no, c.succeeded, c.skipped, c.failed, y.state,
           y.fired_at is null and y.state <> 'pending' as is_fired,
           case when y.fired_at is null and y.state <> 'pending' then greatest(p_now, (
             select max(g.resolved_at) from ff.edge g
             where g.partition_key = c.pk and g.downstream_id = c.downstream_id
               and g.group_no = c.group_no)) end as fired_at
    from counted c
    cross join lateral (
      select z.fired_at,
             case when z.state <> 'pending' then z.state
                  else ff._evaluate_group(
                    z.policy, z.k, z.n, z.succeeded + c.succeeded,
                    z.failed + z.skipped + c.failed + c.skipped) end as state
      from ff.edge_group z
      where z.partition_key = c.pk and z.downstream_id = c.downstream_id
        and z.group_no = c.group_no
      offset 0) y
    offset 0
  ),
  written as (
    update ff.edge_group y set
      succeeded = y.succeeded + j.succeeded,
      skipped = y.skipped + j.skipped,
      failed = y.failed + j.failed,
      state = j.state,
      fired_at = coalesce(y.fired_at, j.fired_at),
      fired_k = case when j.is_fired
                  then case when y.policy = 'all_of' then y.n when y.policy = 'any_of' then 1
                            else y.k end
                  else y.fired_k end,
      fired_n = case when j.is_fired then y.n else y.fired_n end
    from judged j
    where y.partition_key = j.pk and y.downstream_id = j.downstream_id
      and y.group_no = j.group_no
    returning y.downstream_id, y.group_no, y.state, y.on_satisfied, j.is_fired
  )
  select array_agg(w.downstream_id), array_agg(w.group_no), array_agg(w.state),
         array_agg(coalesce(w.on_satisfied = 'cancel_remaining', false))
    into v_ids, v_groups, v_states, v_cancels
  from written w
  where w.is_fired;
  if v_ids is null then
    return;
  end if;

  -- The event names the upstream that made the member impossible.
  for v_skip in
    select s.upstream_id, s.outcome, array_agg(s.downstream_id) as members
    from (
      select distinct on (u.id) u.id as downstream_id, w.upstream_id, w.outcome
      from unnest(v_ids, v_groups, v_states) u(id, group_no, state)
      cross join lateral (
        select e.phase, e.flow_id is not null and exists (
                 select from ff.flow f
                 where f.partition_key = p_partition_key and f.flow_id = e.flow_id
                   and case when f.cancel_policy <> 'flow_only' then true else false end
                 offset 0) as is_cancelled
        from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      cross join lateral (
        select g.upstream_id, g.outcome from ff.edge g
        where g.partition_key = p_partition_key and g.downstream_id = u.id
          and g.group_no = u.group_no and g.outcome is not null
        order by g.resolution desc, g.resolved_at desc, g.edge_id
        limit 1) w
      where u.state = 'impossible' and x.phase <> 'terminal' and not x.is_cancelled
      order by u.id, u.group_no
    ) s
    group by s.upstream_id, s.outcome
  loop
    perform ff._end_executions(
      p_partition_key, v_skip.members, 'skipped', 'skip', 'skipped', 'skip', 'ended_cancelled',
      p_now,
      p_detail => jsonb_build_object(
        'reason', 'dependency_impossible',
        'upstream', format('{fp:%s}:%s', p_partition_key, v_skip.upstream_id),
        'outcome', v_skip.outcome),
      p_wake => false);
    v_ended := v_ended || v_skip.members;
  end loop;

  perform ff._copy_results_to_members(p_partition_key, v_ids, v_groups, p_now);
  with item as materialized (
    select distinct p_partition_key as pk, u.id
    from unnest(v_ids, v_states) u(id, state)
    where u.state = 'satisfied' and not exists (
      select from ff.edge_group y
      where y.partition_key = p_partition_key and y.downstream_id = u.id
        and case when y.state <> 'satisfied' and y.n > 0 then true else false end
      offset 0)
    offset 0
  ),
  ready as (
    update ff.execution e set
      eligibility = 'eligible_now',
      line_id = null,
      blocking_reason = 'waiting_for_worker',
      blocking_detail = null,
      cause = 'satisfy_dependencies',
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at, e.mutated_at)
    from item i
    where e.partition_key = i.pk and e.execution_id = i.id
      and case when e.eligibility = 'blocked_by_dependencies' and e.wait_left is null
            then true else false end
    returning e.route_id
  )
  select array_agg(distinct r.route_id) into v_routes from ready r;
  perform ff._hint_ready(p_partition_key, v_routes);

  for v_group in
    select u.id, u.group_no, u.state, array(
             select distinct g.upstream_id from ff.edge g
             where g.partition_key = p_partition_key and g.downstream_id = u.id
               and g.group_no = u.group_no and g.resolution = 'unsatisfied'
             order by g.upstream_id) as members
    from unnest(v_ids, v_groups, v_states, v_cancels) u(id, group_no, state, cancels)
    where u.cancels
    order by u.id, u.group_no
  loop
    v_siblings := ff._cancel_siblings(
      p_partition_key, v_group.id, v_group.group_no, v_group.members,
      'sibling_quorum_' || v_group.state, p_now, greatest(p_cancel_limit - cancelled, 0));
    cancelled := cancelled + cardinality(v_siblings.cancelled_ids);
    v_ended := v_ended || v_siblings.cancelled_ids;
    has_siblings := has_siblings or cardinality(v_siblings.left_ids) > 0;
  end loop;
  ended_ids := ff._read_awaited(p_partition_key, v_ended);
end;
$$;
