-- Store a flow that is given as JSON, as a whole or not at all. Problems are returned and not
-- raised, so that the caller's transaction can continue.
--
-- A flow is an object with flow_id, flow_kind and nodes. Optional fields are edges, groups, tags,
-- creator, and parent_id. The parent is the execution whose handler stores the flow. While the
-- parent is unfinished, no member is trimmed.
--
-- A node is an object with a name, unique in the flow, and the fields of an item of submit_json,
-- except the fields of a key and of a parent. Upstream nodes come before downstream nodes.
--
-- An edge has `from` and `to`, the positions of its nodes counted from 0. Two fields are optional:
-- `group`, the number of its edge group (default 0), and `ref`, a text. If `ref` is given, the
-- result of the upstream can become the payload of the downstream.
--
-- A group has `node` (the position of the downstream node), `group` (its number) and `policy`
-- (all_of, any_of or quorum). A quorum has `k`, the number of successes that it needs. For any_of
-- and quorum, on_satisfied says what happens to siblings: cancel_remaining (the default) or
-- let_run. The policy of a group that is not listed is all_of.
--
-- Returns {"database", "flow_id", "outcome", "detail"}. `database` identifies this database.
-- p_database is the `database` of an earlier answer. If it names another database, the outcome is
-- `invalid`.
--
-- Moves:    (new) -> runnable eligible (T1), delayed (T2) or blocked by dependencies (T3)
-- Refuses:  as outcome: invalid (field, problem) · unknown_route · lane_closed
--           · unknown_gate · limit_reached
-- Locks:    fair keys, then the lines that nodes join, skipping locked ones. Waits up to 2 s, but
--           only for a concurrent submit of the same flow
-- Repeat:   `duplicate`
-- Rights:   app
drop function if exists ff.submit_flow;
create function ff.submit_flow(
  p_partition_key smallint,
  p_namespace     text,
  p_flow          jsonb,
  p_database      text default null
)
returns jsonb
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_answer   jsonb;
  v_database text;
  v_flow_id  uuid;
  v_problem  text[];
  v_known    record;
  v_nodes    record;
  v_edges    record;
  v_groups   record;
  v_given    record;
  v_size     integer;
  v_has_gone boolean;
  v_waits    boolean[];
  v_feeds    boolean[];
  v_closed   bigint[];
  v_limited  boolean;
  v_lanes    text[];
  v_verdict  record;
  v_options  jsonb[];
  v_parent   jsonb;
  v_stored   record;
  v_stem     text;
  v_tail     text;
  v_count    integer;
  v_now      timestamptz;
begin
  perform ff._check_namespace(p_namespace);
  v_database := ff._identify_database();
  v_answer := jsonb_build_object('database', v_database, 'flow_id', p_flow ->> 'flow_id');
  v_problem := case
    when p_namespace is null then array['namespace', 'must not be null']
    when p_partition_key is null or p_partition_key not between 0 and (
           select m.value::integer - 1 from ff.meta m where m.name = 'partitions')
      then array['partition_key', 'there is no such partition']
    when p_database <> v_database
      then array['database', format('this is %s, not the intended database',
                                    current_database())]
    else ff._flow_problem(p_flow) end;
  if v_problem is not null then
    return v_answer || jsonb_build_object('outcome', 'invalid', 'detail', jsonb_build_object(
      'field', v_problem[1], 'problem', v_problem[2]));
  end if;

  v_flow_id := (p_flow ->> 'flow_id')::uuid;
  v_known := ff._judge_existing_flow(
    p_partition_key, p_namespace, v_flow_id, p_flow #>> '{nodes,0,execution_id}');
  if v_known.outcome is not null then
    return v_answer || jsonb_build_object('outcome', v_known.outcome, 'detail', v_known.detail);
  end if;

  v_nodes := ff._read_nodes(p_flow -> 'nodes');
  v_problem := v_nodes.problem;
  v_size := jsonb_array_length(p_flow -> 'nodes');
  if v_problem is null and p_flow ->> 'parent_id' is not null and not exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = (p_flow ->> 'parent_id')::uuid
        and case when e.namespace = p_namespace then true else false end) then
    v_problem := array['parent_id', 'there is no such execution in this namespace'];
  end if;
  if v_problem is null then
    v_edges := ff._read_edges(nullif(p_flow -> 'edges', 'null'), v_size);
    v_problem := v_edges.problem;
  end if;
  if v_problem is null then
    v_groups := ff._read_groups(nullif(p_flow -> 'groups', 'null'), v_size, v_edges.downstreams,
                                v_edges.groups);
    v_problem := v_groups.problem;
  end if;
  if v_problem is null then
    v_given := ff._read_items(p_flow -> 'nodes', null, '{name}');
    -- Read nodes and edges in one pass, because the planner could not estimate the size of a join.
    select array_agg(f.waits order by f.node), array_agg(f.feeds order by f.node)
      into v_waits, v_feeds
    from (
      select a.node, bool_or(a.waits) as waits, bool_or(a.feeds) as feeds
      from (
        select s.node, false as waits, false as feeds
        from generate_series(0, v_size - 1) s(node)
        union all
        select u.upstream, false, true from unnest(v_edges.upstreams) u(upstream)
        union all
        select u.downstream, true, false from unnest(v_edges.downstreams) u(downstream)) a
      group by a.node) f;
    -- The id of a trimmed execution stays taken while its events are kept.
    v_has_gone := exists (select from ff.event_trim t where t.partition_key = p_partition_key);
    select case
             when d.nth > 1 then array[format('nodes[%s].execution_id', d.n - 1), 'is given twice']
             when d.is_taken
               then array[format('nodes[%s].execution_id', d.n - 1), 'is taken: make a new one']
             else array[format('nodes[%s].%s', d.n - 1, case when d.delay is not null
                                                          then 'delay_ms' else 'delayed_until' end),
                        'cannot be used on a node that waits for others'] end
      into v_problem
    from (
      select u.n, u.delay, u.options ->> 'delayed_until' as delayed_until, u.waits,
             row_number() over (partition by u.id order by u.n) as nth,
             exists (select from ff.execution e
                     where e.partition_key = p_partition_key and e.execution_id = u.id
                     -- Without `offset 0` the planner may hash the whole table while it is small.
                     offset 0)
             or (v_has_gone and exists (
               select from ff.event v
               where v.partition_key = p_partition_key and v.execution_id = u.id
               offset 0)) as is_taken
      from unnest(v_given.ids, v_given.delays, v_given.options, v_waits)
        with ordinality u(id, delay, options, waits, n)) d
    where d.nth > 1 or d.is_taken or (d.waits and num_nonnulls(d.delay, d.delayed_until) > 0)
    order by d.n limit 1;
    if found then
      -- A concurrent submit may have stored the same flow since this call first looked for it.
      v_known := ff._judge_existing_flow(p_partition_key, p_namespace, v_flow_id, v_given.ids[1]::text);
      if v_known.outcome = 'duplicate' then
        return v_answer || jsonb_build_object('outcome', 'duplicate', 'detail', null);
      end if;
    end if;
  end if;
  if v_problem is not null then
    return v_answer || jsonb_build_object('outcome', 'invalid', 'detail', jsonb_build_object(
      'field', v_problem[1], 'problem', v_problem[2]));
  end if;

  select array_agg(distinct l.lane) filter (where u.is_ready),
         array_agg(u.route_id) filter (where l.state is null or l.state in ('draining', 'disabled')),
         bool_or(r.is_limited)
    into v_lanes, v_closed, v_limited
  from (select x.route_id, bool_or(not x.waits) as is_ready
        from unnest(v_given.route_ids, v_waits) x(route_id, waits) group by x.route_id) u
  left join ff.route r
    on r.route_id = u.route_id and r.namespace = p_namespace and r.code_version is null
  left join ff.lane l on l.namespace = r.namespace and l.lane = r.lane;
  select j.item, j.word, j.detail into v_verdict
  from unnest(ff._judge_submits(
    p_namespace, v_given.ids, v_given.route_ids, v_closed, v_given.payloads, v_given.encodings,
    v_given.delays, v_given.options)) j
  order by j.item limit 1;
  if not found and v_given.options is not null then
    select j.item, j.word, j.detail into v_verdict
    from unnest(ff._judge_gates(
      p_partition_key, p_namespace, '{}', v_given.ids, v_given.options)) j
    order by j.item limit 1;
  end if;
  if found then
    return v_answer || jsonb_build_object('outcome', v_verdict.word, 'detail',
      v_verdict.detail || jsonb_build_object('field', concat_ws(
        '.', format('nodes[%s]', v_verdict.item - 1),
        coalesce(v_verdict.detail ->> 'field',
                 case when v_verdict.word = 'unknown_route' then 'route_id' else 'quotas' end))));
  end if;
  if v_limited then
    select j.item, j.word, j.detail into v_verdict
    from unnest(ff._judge_limits(
      p_partition_key, p_namespace, '{}', v_given.ids, v_given.route_ids, v_given.options)) j
    order by j.item limit 1;
    if found then
      return v_answer || jsonb_build_object('outcome', v_verdict.word, 'detail',
        v_verdict.detail || jsonb_build_object('field', format(
          'nodes[%s].%s', v_verdict.item - 1, v_verdict.detail ->> 'field')));
    end if;
  end if;
  v_count := coalesce(cardinality(v_edges.upstreams), 0);
  v_now := ff.now();
  insert into ff.flow (
    partition_key, flow_id, namespace, flow_kind, graph_revision, node_count, edge_count, created_at,
    mutated_at, tags, creator)
  values (p_partition_key, v_flow_id, p_namespace, p_flow ->> 'flow_kind', v_size + v_count, v_size,
          v_count, v_now, v_now, nullif(nullif(p_flow -> 'tags', 'null'), '{}'),
          p_flow ->> 'creator')
  on conflict do nothing;
  if not found then
    -- A concurrent submit of the same flow has just finished.
    v_known := ff._judge_existing_flow(p_partition_key, p_namespace, v_flow_id, v_given.ids[1]::text);
    return v_answer || jsonb_build_object('outcome', v_known.outcome, 'detail', v_known.detail);
  end if;

  v_options := v_given.options;
  if p_flow ->> 'parent_id' is not null then
    v_parent := jsonb_build_object('parent_id', p_flow ->> 'parent_id');
    v_options := case when v_options is null then array[v_parent] else array(
      select coalesce(u.o, '{}') || v_parent from unnest(v_options) with ordinality u(o, n)
      order by u.n) end;
  end if;
  v_stored := ff._store_executions(
    p_partition_key, p_namespace, '{}', v_given.ids, v_given.route_ids, v_given.payloads, true,
    v_given.encodings, v_given.priorities, v_given.delays, v_options, v_flow_id, v_nodes.names,
    v_waits, v_feeds);
  if cardinality(v_stored.created) <> v_size then
    raise exception using errcode = '40001',
      message = 'an execution with one of these ids was stored at the same moment';
  end if;

  -- The id of an edge is made of its flow and position, so a repeat makes the same id.
  v_stem := left(v_flow_id::text, 14);
  v_tail := right(v_flow_id::text, 13);
  insert into ff.edge (
    partition_key, flow_id, edge_id, upstream_id, downstream_id, group_no, data_passing_ref,
    created_at, applied_at, resolution)
  select p_partition_key, v_flow_id,
         (v_stem || '8' || lpad(to_hex((u.n - 1) >> 12), 3, '0')
          || '-8' || lpad(to_hex((u.n - 1) & 4095), 3, '0') || v_tail)::uuid,
         v_given.ids[u.upstream + 1], v_given.ids[u.downstream + 1], u.grp, u.ref, v_now, v_now,
         'unsatisfied'
  from unnest(v_edges.upstreams, v_edges.downstreams, v_edges.groups, v_edges.refs)
    with ordinality u(upstream, downstream, grp, ref, n);
  insert into ff.edge_group (
    partition_key, downstream_id, group_no, flow_id, policy, k, on_satisfied, n)
  select p_partition_key, v_given.ids[u.downstream + 1], u.grp, v_flow_id, u.policy, u.k,
         u.on_satisfied, u.size
  from unnest(v_groups.downstreams, v_groups.group_nos, v_groups.sizes, v_groups.policies,
              v_groups.ks, v_groups.on_satisfied)
    u(downstream, grp, size, policy, k, on_satisfied);

  if ff._sends_hints() then
    perform pg_notify('ff_ready', concat_ws(' ', p_partition_key, p_namespace, l.lane))
    from unnest(v_lanes) l(lane)
    where l.lane is not null;
  end if;
  return v_answer || jsonb_build_object('outcome', 'created', 'detail', null);
end;
$$;
