-- Store new executions: their rows, events and bodies. The caller has checked all items. No other
-- function writes new executions. submit_executions (also for submit_json and schedules),
-- submit_flow and _submit_hooks call this function.
--
-- The arrays and options are the same as in submit_executions. An array of one value applies to all
-- items. Items in p_skip are left out. p_has_large is true if a payload may have more than 256
-- bytes, which is too large for the row. For members of a flow, the caller also passes p_flow_id
-- and p_node_names. p_waits marks members with upstream members, p_feeds marks members with
-- downstream members.
--
-- Returns the created ids. `seconds` lists the items that have the same id as an earlier item of
-- the call.
--
-- There are two statements that write rows and events. The fast one is for calls whose items differ
-- only in id and payload, and have no flow, quota, budget or fair key. Most calls are of this kind.
-- The fast statement computes everything else once. The slow one is for all other calls. If an id
-- is taken, the fast statement is rolled back, and the slow one stores the items and skips the
-- taken ids.
--
-- This function has no planner settings; the settings of its caller apply.
drop function if exists ff._store_executions;
create function ff._store_executions(
  p_partition_key     smallint,
  p_namespace         text,
  p_skip              integer[],
  p_execution_ids     uuid[],
  p_route_ids         bigint[],
  p_payloads          bytea[],
  p_has_large         boolean,
  p_payload_encodings text[],
  p_priorities        integer[],
  p_delays            interval[],
  p_options           jsonb[],
  p_flow_id           uuid default null,
  p_node_names        text[] default null,
  p_waits             boolean[] default null,
  p_feeds             boolean[] default null,
  out created         uuid[],
  out seconds         integer[]
)
returns record
language plpgsql
as $$
declare
  v_body          constant text[] :=
    array['policy', 'tags', 'creator', 'trace_context', 'task_version'];
  v_now           constant timestamptz := ff.now();
  v_xid           constant xid8 := pg_current_xact_id();
  v_generation    constant integer := ff._enter_generation(p_partition_key);
  -- values that apply to all items; null if the items differ
  v_route_id      constant bigint := case when cardinality(p_route_ids) = 1 then p_route_ids[1] end;
  v_payload       constant bytea := case when cardinality(p_payloads) = 1 then p_payloads[1] end;
  v_encoding      constant text := case when cardinality(p_payload_encodings) = 1
                                     then p_payload_encodings[1] end;
  v_priority      constant integer := case when cardinality(p_priorities) = 1
                                        then p_priorities[1] end;
  v_delay         constant interval := case when cardinality(p_delays) = 1 then p_delays[1] end;
  v_shared        constant jsonb := case when cardinality(p_options) = 1 then p_options[1] end;
  v_options       constant jsonb[] := case when v_shared is null then p_options end;
  v_delayed_until timestamptz;
  v_deadline_at   timestamptz;
  v_policy        jsonb;
  v_max_reclaims  numeric;
  v_tags          jsonb;
  v_parent_id     uuid;
  v_with_parent   boolean := false;
  v_has_trace     boolean := false;
  v_has_body      boolean := false;
  v_any_body      boolean;
  v_any_tags      boolean;
  v_tag_key       text;
  v_id            uuid;
  -- for items that differ only in id and payload
  v_until_at      timestamptz;
  v_rank          smallint;
  v_limit         integer;
  v_timeout       interval;
  v_retention     interval;
  v_instance_tag  text;
  v_detail        jsonb;
  -- only for items under quotas or budgets
  v_is_gated      boolean := false;
  v_line_routes   bigint[];
  v_line_gates    bigint[];
  v_is_fair       boolean := false;
  v_positions     timestamptz[];
begin
  created := '{}';
  seconds := '{}';
  if cardinality(p_skip) = cardinality(p_execution_ids) then
    return;
  end if;
  v_max_reclaims := (v_shared ->> 'max_reclaims')::numeric;
  -- Most calls have no other shared option. They skip these lines, each of which costs measurable
  -- time in a small batch.
  if v_shared - 'max_reclaims' <> '{}' then
    v_delayed_until := (v_shared ->> 'delayed_until')::timestamptz;
    v_deadline_at := coalesce(
      (v_shared ->> 'deadline_at')::timestamptz,
      v_now + interval '1 millisecond' * (v_shared ->> 'deadline_ms')::double precision);
    v_policy := (v_shared ->> 'policy')::jsonb;
    v_tags := (v_shared ->> 'tags')::jsonb;
    v_any_tags := v_tags is not null;
    v_parent_id := (v_shared ->> 'parent_id')::uuid;
    v_with_parent := coalesce((v_shared ->> 'with_parent')::boolean, false);
    v_has_trace := v_shared ->> 'trace_context' is not null;
    v_has_body := v_shared ?| v_body;
    v_is_gated := v_shared ?| array['quotas', 'budgets'];
    v_is_fair := v_shared ->> 'fair_key' is not null;
  end if;
  v_any_body := p_has_large or p_node_names is not null or v_has_body;
  if v_options is not null then
    select bool_or(u.o ? 'tags'), v_any_body or bool_or(u.o ?| v_body) is true,
           bool_or(u.o ?| array['quotas', 'budgets']) is true,
           bool_or(u.o ->> 'fair_key' is not null) is true
      into v_any_tags, v_any_body, v_is_gated, v_is_fair
    from unnest(v_options) u(o);
  end if;
  if v_is_fair then
    v_positions := ff._order_fairly(
      p_partition_key, p_namespace, p_route_ids, p_priorities, array(
        select case when u.n <> all (p_skip) then coalesce(u.o, v_shared) ->> 'fair_key' end
        from unnest(p_execution_ids, v_options) with ordinality u(id, o, n)
        order by u.n), v_now);
  end if;
  if v_is_gated then
    select l.route_ids, l.gate_ids into v_line_routes, v_line_gates
    from ff._lock_lines(p_partition_key, p_route_ids, array(
      select g.id::bigint
      from unnest(p_options) u(o)
      cross join lateral (
        select x.id from jsonb_array_elements_text(nullif(u.o -> 'quotas', 'null')) x(id)
        union all
        select x.id from jsonb_array_elements_text(nullif(u.o -> 'budgets', 'null')) x(id)) g)) l;
  end if;
  if v_any_tags then
    select m.value into v_tag_key from ff.meta m where m.name = 'instance_tag_key';
  end if;

  if cardinality(p_skip) = 0 and p_flow_id is null and p_node_names is null
     and not v_is_gated and not v_is_fair
     and greatest(cardinality(p_route_ids), cardinality(p_payload_encodings),
                  cardinality(p_priorities), cardinality(p_delays), cardinality(p_options)) = 1 then
    if v_delayed_until is not null or v_delay is not null then
      v_until_at := coalesce(v_delayed_until, v_now + v_delay);
      v_until_at := case when v_until_at > v_now then v_until_at end;
    end if;
    v_rank := 9000 - least(greatest(coalesce(v_priority, 0), 0), 9000);
    if v_rank <> 9000 then
      v_detail := jsonb_build_object('priority', 9000 - v_rank);
    end if;
    v_limit := coalesce(v_max_reclaims, (v_policy ->> 'max_reclaim_count')::numeric, 100);
    if v_policy is not null then
      v_timeout := interval '1 millisecond'
        * (v_policy #>> '{timeout_policy,attempt_timeout_ms}')::double precision;
      v_retention := interval '1 millisecond' * (v_policy ->> 'retention_ms')::double precision;
    end if;
    if v_any_tags then
      v_instance_tag := v_tags ->> v_tag_key;
    end if;
    begin
      with stored as (
        insert into ff.execution (
          partition_key, execution_id, route_id, namespace, rank, created_at, order_at,
          transitioned_at, mutated_at, version, phase, ownership, eligibility, blocking_reason,
          outcome, attempt_state, cause, delayed_until, due_at, deadline_at, attempt_timeout,
          retention, max_reclaims, instance_tag, payload_encoding, payload, has_payload, has_body,
          parent_id, ends_with_parent)
        select p_partition_key, i.id, v_route_id, p_namespace, v_rank, v_now, v_now, v_now, v_now, 1,
               'runnable', 'unowned',
               case when v_until_at is null then 'eligible_now'::ff.eligibility
                    else 'not_eligible_until_time' end,
               case when v_until_at is null then 'waiting_for_worker'::ff.blocking_reason
                    else 'waiting_for_delay' end,
               'none', 'pending_first_attempt', 'submit', v_until_at,
               least(v_until_at, v_deadline_at), v_deadline_at, v_timeout, v_retention, v_limit,
               v_instance_tag, v_encoding,
               case when octet_length(i.payload) <= 256 and not v_has_trace then i.payload end,
               i.payload is not null, v_has_body or octet_length(i.payload) > 256 is true,
               v_parent_id, v_with_parent
        from (select u.id, coalesce(u.payload, v_payload) as payload
              from unnest(p_execution_ids, p_payloads) u(id, payload)) i
        order by i.id
      )
      insert into ff.event (
        partition_key, generation, xid, execution_id, version, kind, route_id, namespace,
        instance_tag, occurred_at, detail)
      select p_partition_key, v_generation, v_xid, u.id, 1, 'submitted', v_route_id, p_namespace,
             v_instance_tag, v_now, v_detail
      from unnest(p_execution_ids) u(id);
      created := p_execution_ids;
    exception when unique_violation then
      null;  -- The statement below finds out which ids are taken.
    end;
  end if;

  if created = '{}' then
    for v_id in
      with stored as (
        insert into ff.execution (
          partition_key, execution_id, route_id, namespace, rank, created_at, order_at,
          transitioned_at, mutated_at, version, phase, ownership, eligibility, blocking_reason,
          outcome, attempt_state, cause, delayed_until, due_at, deadline_at, attempt_timeout,
          retention, max_reclaims, instance_tag, payload_encoding, payload, has_payload, has_body,
          parent_id, ends_with_parent, flow_id, is_awaited, quota_ids, budget_ids, line_id,
          blocked_at)
        select p_partition_key, i.id, i.route_id, p_namespace,
               9000 - least(greatest(coalesce(i.priority, 0), 0), 9000),
               v_now, coalesce(v_positions[i.n], v_now), v_now, v_now, 1, 'runnable', 'unowned',
               case when i.waits then 'blocked_by_dependencies'::ff.eligibility
                    when t.until_at is not null then 'not_eligible_until_time'
                    when y.gate_id is null then 'eligible_now'
                    when y.gate_id < 4611686018427387904 then 'blocked_by_quota'
                    else 'blocked_by_budget' end,
               case when i.waits then 'waiting_for_children'::ff.blocking_reason
                    when t.until_at is not null then 'waiting_for_delay'
                    when y.gate_id is null then 'waiting_for_worker'
                    when y.gate_id < 4611686018427387904 then 'waiting_for_quota'
                    else 'waiting_for_budget' end,
               'none', 'pending_first_attempt', 'submit', t.until_at,
               least(t.until_at, i.deadline_at), i.deadline_at,
               interval '1 millisecond'
                 * (i.policy #>> '{timeout_policy,attempt_timeout_ms}')::double precision,
               interval '1 millisecond' * (i.policy ->> 'retention_ms')::double precision,
               coalesce(i.max_reclaims, (i.policy ->> 'max_reclaim_count')::numeric, 100),
               i.tags ->> v_tag_key, i.encoding,
               -- with a trace context the payload goes to the body: the claim reads both there
               case when octet_length(i.payload) <= 256 and not i.has_trace then i.payload end,
               i.payload is not null,
               i.has_body or octet_length(i.payload) > 256 is true or i.name is not null,
               i.parent_id, i.with_parent, p_flow_id, coalesce(i.feeds, false),
               g.quota_ids, g.budget_ids, y.gate_id, case when y.gate_id is not null then v_now end
        from (
          select u.id, u.n, coalesce(u.route_id, v_route_id) as route_id,
                 coalesce(u.payload, v_payload) as payload,
                 coalesce(u.encoding, v_encoding) as encoding,
                 coalesce(u.priority, v_priority) as priority,
                 coalesce((u.options ->> 'delayed_until')::timestamptz, v_delayed_until,
                          v_now + coalesce(u.delay, v_delay)) as delayed_until,
                 coalesce(
                   (u.options ->> 'deadline_at')::timestamptz,
                   v_now + interval '1 millisecond' * (u.options ->> 'deadline_ms')::double precision,
                   v_deadline_at) as deadline_at,
                 coalesce((u.options ->> 'policy')::jsonb, v_policy) as policy,
                 coalesce((u.options ->> 'max_reclaims')::numeric, v_max_reclaims) as max_reclaims,
                 coalesce((u.options ->> 'tags')::jsonb, v_tags) as tags,
                 coalesce((u.options ->> 'parent_id')::uuid, v_parent_id) as parent_id,
                 coalesce((u.options ->> 'with_parent')::boolean, v_with_parent) as with_parent,
                 u.options ->> 'trace_context' is not null or v_has_trace as has_trace,
                 coalesce(u.options ?| v_body, v_has_body) as has_body,
                 u.name, u.waits, u.feeds, coalesce(u.options, v_shared) as options
          from unnest(p_execution_ids, p_route_ids, p_payloads, p_payload_encodings, p_priorities,
                      p_delays, v_options, p_node_names, p_waits, p_feeds)
            with ordinality u(id, route_id, payload, encoding, priority, delay, options, name, waits,
                              feeds, n)) i
        cross join lateral (
          select case when i.delayed_until > v_now then i.delayed_until end as until_at) t
        left join lateral (
          select (select array_agg(distinct x.id::bigint) from jsonb_array_elements_text(
                    nullif(i.options -> 'quotas', 'null')) x(id)) as quota_ids,
                 (select array_agg(distinct x.id::bigint) from jsonb_array_elements_text(
                    nullif(i.options -> 'budgets', 'null')) x(id)) as budget_ids
          offset 0) g on v_is_gated
        left join lateral (
          select l.gate_id
          from unnest(v_line_routes, v_line_gates) l(route_id, gate_id)
          where l.route_id = i.route_id and t.until_at is null and i.waits is not true
            and (l.gate_id = any (g.quota_ids) or l.gate_id = any (g.budget_ids))
          limit 1) y on v_is_gated
        where i.n <> all (p_skip)
        order by i.id, i.n
        on conflict do nothing
        returning execution_id, route_id, instance_tag, rank
      )
      insert into ff.event (
        partition_key, generation, xid, execution_id, version, kind, route_id, flow_id, namespace,
        instance_tag, occurred_at, detail)
      select p_partition_key, v_generation, v_xid, s.execution_id, 1, 'submitted', s.route_id,
             p_flow_id, p_namespace, s.instance_tag, v_now,
             -- The event contains the priority unless it is the default. Check O08 of doctor reads
             -- it.
             case when s.rank <> 9000 then jsonb_build_object('priority', 9000 - s.rank) end
      from stored s
      returning execution_id
    loop
      created := created || v_id;
    end loop;

    -- If several items have the same id, only the first was created, and only its body is stored.
    if cardinality(created) <> cardinality(p_execution_ids) - cardinality(p_skip) then
      seconds := array(
        select s.n
        from (select u.n, row_number() over (partition by u.id order by u.n) as nth
              from unnest(p_execution_ids) with ordinality u(id, n)
              where u.n <> all (p_skip)) s
        where s.nth > 1);
    end if;
  end if;
  if v_any_body then
    insert into ff.execution_body (
      partition_key, execution_id, payload, policy, tags, creator, trace_context, task_version,
      node_name)
    select p_partition_key, i.id,
           case when octet_length(i.payload) > 256 or i.o ->> 'trace_context' is not null
             then i.payload end,
           (i.o ->> 'policy')::jsonb, nullif((i.o ->> 'tags')::jsonb, '{}'), i.o ->> 'creator',
           i.o ->> 'trace_context', i.o ->> 'task_version', i.name
    from (
      select u.id, u.n, coalesce(u.payload, v_payload) as payload,
             coalesce(u.options, v_shared) as o, u.name
      from unnest(p_execution_ids, p_payloads, v_options, p_node_names)
        with ordinality u(id, payload, options, name, n)) i
    where (octet_length(i.payload) > 256 or i.o ?| v_body or i.name is not null)
      and (cardinality(created) = cardinality(p_execution_ids) or i.id = any (created))
      and i.n <> all (p_skip) and i.n <> all (seconds);
  end if;
end;
$$;

-- When distributed
-- Two statements write the rows and the events, because each insert must be the outermost statement.
-- An item under a closed quota or budget does not join its line here: the next claim puts it there.
drop function if exists ff._store_executions;
create function ff._store_executions(
  p_partition_key     smallint,
  p_namespace         text,
  p_skip              integer[],
  p_execution_ids     uuid[],
  p_route_ids         bigint[],
  p_payloads          bytea[],
  p_has_large         boolean,
  p_payload_encodings text[],
  p_priorities        integer[],
  p_delays            interval[],
  p_options           jsonb[],
  p_flow_id           uuid default null,
  p_node_names        text[] default null,
  p_waits             boolean[] default null,
  p_feeds             boolean[] default null,
  out created         uuid[],
  out seconds         integer[]
)
returns record
language plpgsql
as $$
declare
  v_body          constant text[] :=
    array['policy', 'tags', 'creator', 'trace_context', 'task_version'];
  v_now           constant timestamptz := ff.now();
  v_xid           constant xid8 := pg_current_xact_id();
  v_generation    constant integer := ff._enter_generation(p_partition_key);
  -- values that apply to all items; null if the items differ
  v_route_id      constant bigint := case when cardinality(p_route_ids) = 1 then p_route_ids[1] end;
  v_payload       constant bytea := case when cardinality(p_payloads) = 1 then p_payloads[1] end;
  v_encoding      constant text := case when cardinality(p_payload_encodings) = 1
                                     then p_payload_encodings[1] end;
  v_priority      constant integer := case when cardinality(p_priorities) = 1
                                        then p_priorities[1] end;
  v_delay         constant interval := case when cardinality(p_delays) = 1 then p_delays[1] end;
  v_shared        constant jsonb := case when cardinality(p_options) = 1 then p_options[1] end;
  v_options       constant jsonb[] := case when v_shared is null then p_options end;
  v_delayed_until timestamptz;
  v_deadline_at   timestamptz;
  v_policy        jsonb;
  v_max_reclaims  numeric;
  v_tags          jsonb;
  v_parent_id     uuid;
  v_with_parent   boolean := false;
  v_has_trace     boolean := false;
  v_has_body      boolean := false;
  v_any_body      boolean;
  v_any_tags      boolean;
  v_tag_key       text;
  v_is_gated      boolean := false;
  v_is_fair       boolean := false;
  v_positions     timestamptz[];
  v_row           record;
  v_routes        bigint[] := '{}';
  v_tags_stored   text[] := '{}';
  v_ranks         smallint[] := '{}';
begin
  created := '{}';
  seconds := '{}';
  if cardinality(p_skip) = cardinality(p_execution_ids) then
    return;
  end if;
  v_max_reclaims := (v_shared ->> 'max_reclaims')::numeric;
  -- Most calls have no other shared option. They skip these lines, each of which costs measurable
  -- time in a small batch.
  if v_shared - 'max_reclaims' <> '{}' then
    v_delayed_until := (v_shared ->> 'delayed_until')::timestamptz;
    v_deadline_at := coalesce(
      (v_shared ->> 'deadline_at')::timestamptz,
      v_now + interval '1 millisecond' * (v_shared ->> 'deadline_ms')::double precision);
    v_policy := (v_shared ->> 'policy')::jsonb;
    v_tags := (v_shared ->> 'tags')::jsonb;
    v_any_tags := v_tags is not null;
    v_parent_id := (v_shared ->> 'parent_id')::uuid;
    v_with_parent := coalesce((v_shared ->> 'with_parent')::boolean, false);
    v_has_trace := v_shared ->> 'trace_context' is not null;
    v_has_body := v_shared ?| v_body;
    v_is_gated := v_shared ?| array['quotas', 'budgets'];
    v_is_fair := v_shared ->> 'fair_key' is not null;
  end if;
  v_any_body := p_has_large or p_node_names is not null or v_has_body;
  if v_options is not null then
    select bool_or(u.o ? 'tags'), v_any_body or bool_or(u.o ?| v_body) is true,
           bool_or(u.o ?| array['quotas', 'budgets']) is true,
           bool_or(u.o ->> 'fair_key' is not null) is true
      into v_any_tags, v_any_body, v_is_gated, v_is_fair
    from unnest(v_options) u(o);
  end if;
  if v_is_fair then
    v_positions := ff._order_fairly(
      p_partition_key, p_namespace, p_route_ids, p_priorities, array(
        select case when u.n <> all (p_skip) then coalesce(u.o, v_shared) ->> 'fair_key' end
        from unnest(p_execution_ids, v_options) with ordinality u(id, o, n)
        order by u.n), v_now);
  end if;
  if v_any_tags then
    select m.value into v_tag_key from ff.meta m where m.name = 'instance_tag_key';
  end if;

  for v_row in
    insert into ff.execution (
      partition_key, execution_id, route_id, namespace, rank, created_at, order_at,
      transitioned_at, mutated_at, version, phase, ownership, eligibility, blocking_reason,
      outcome, attempt_state, cause, delayed_until, due_at, deadline_at, attempt_timeout,
      retention, max_reclaims, instance_tag, payload_encoding, payload, has_payload, has_body,
      parent_id, ends_with_parent, flow_id, is_awaited, quota_ids, budget_ids)
    select p_partition_key, i.id, i.route_id, p_namespace,
           9000 - least(greatest(coalesce(i.priority, 0), 0), 9000),
           v_now, coalesce(v_positions[i.n], v_now), v_now, v_now, 1, 'runnable', 'unowned',
           case when i.waits then 'blocked_by_dependencies'::ff.eligibility
                when t.until_at is null then 'eligible_now'
                else 'not_eligible_until_time' end,
           case when i.waits then 'waiting_for_children'::ff.blocking_reason
                when t.until_at is null then 'waiting_for_worker'
                else 'waiting_for_delay' end,
           'none', 'pending_first_attempt', 'submit', t.until_at,
           least(t.until_at, i.deadline_at), i.deadline_at,
           interval '1 millisecond'
             * (i.policy #>> '{timeout_policy,attempt_timeout_ms}')::double precision,
           interval '1 millisecond' * (i.policy ->> 'retention_ms')::double precision,
           coalesce(i.max_reclaims, (i.policy ->> 'max_reclaim_count')::numeric, 100),
           i.tags ->> v_tag_key, i.encoding,
           -- with a trace context the payload goes to the body: the claim reads both there
           case when octet_length(i.payload) <= 256 and not i.has_trace then i.payload end,
           i.payload is not null,
           i.has_body or octet_length(i.payload) > 256 is true or i.name is not null,
           i.parent_id, i.with_parent, p_flow_id, coalesce(i.feeds, false),
           g.quota_ids, g.budget_ids
    from (
      select u.id, u.n, coalesce(u.route_id, v_route_id) as route_id,
             coalesce(u.payload, v_payload) as payload,
             coalesce(u.encoding, v_encoding) as encoding,
             coalesce(u.priority, v_priority) as priority,
             coalesce((u.options ->> 'delayed_until')::timestamptz, v_delayed_until,
                      v_now + coalesce(u.delay, v_delay)) as delayed_until,
             coalesce(
               (u.options ->> 'deadline_at')::timestamptz,
               v_now + interval '1 millisecond' * (u.options ->> 'deadline_ms')::double precision,
               v_deadline_at) as deadline_at,
             coalesce((u.options ->> 'policy')::jsonb, v_policy) as policy,
             coalesce((u.options ->> 'max_reclaims')::numeric, v_max_reclaims) as max_reclaims,
             coalesce((u.options ->> 'tags')::jsonb, v_tags) as tags,
             coalesce((u.options ->> 'parent_id')::uuid, v_parent_id) as parent_id,
             coalesce((u.options ->> 'with_parent')::boolean, v_with_parent) as with_parent,
             u.options ->> 'trace_context' is not null or v_has_trace as has_trace,
             coalesce(u.options ?| v_body, v_has_body) as has_body,
             u.name, u.waits, u.feeds, coalesce(u.options, v_shared) as options
      from unnest(p_execution_ids, p_route_ids, p_payloads, p_payload_encodings, p_priorities,
                  p_delays, v_options, p_node_names, p_waits, p_feeds)
        with ordinality u(id, route_id, payload, encoding, priority, delay, options, name, waits,
                          feeds, n)) i
    cross join lateral (
      select case when i.delayed_until > v_now then i.delayed_until end as until_at) t
    left join lateral (
      select (select array_agg(distinct x.id::bigint) from jsonb_array_elements_text(
                nullif(i.options -> 'quotas', 'null')) x(id)) as quota_ids,
             (select array_agg(distinct x.id::bigint) from jsonb_array_elements_text(
                nullif(i.options -> 'budgets', 'null')) x(id)) as budget_ids
      offset 0) g on v_is_gated
    where i.n <> all (p_skip)
    order by i.id, i.n
    on conflict do nothing
    returning execution_id, route_id, instance_tag, rank
  loop
    created := created || v_row.execution_id;
    v_routes := v_routes || v_row.route_id;
    v_tags_stored := array_append(v_tags_stored, v_row.instance_tag);
    v_ranks := v_ranks || v_row.rank;
  end loop;
  insert into ff.event (
    partition_key, generation, xid, execution_id, version, kind, route_id, flow_id, namespace,
    instance_tag, occurred_at, detail)
  select p_partition_key, v_generation, v_xid, u.id, 1, 'submitted', u.route_id, p_flow_id,
         p_namespace, u.instance_tag, v_now,
         -- The event contains the priority unless it is the default. Check O08 of doctor reads it.
         case when u.rank <> 9000 then jsonb_build_object('priority', 9000 - u.rank) end
  from unnest(created, v_routes, v_tags_stored, v_ranks) u(id, route_id, instance_tag, rank);

  -- If several items have the same id, only the first was created, and only its body is stored.
  if cardinality(created) <> cardinality(p_execution_ids) - cardinality(p_skip) then
    seconds := array(
      select s.n
      from (select u.n, row_number() over (partition by u.id order by u.n) as nth
            from unnest(p_execution_ids) with ordinality u(id, n)
            where u.n <> all (p_skip)) s
      where s.nth > 1);
  end if;
  if v_any_body then
    insert into ff.execution_body (
      partition_key, execution_id, payload, policy, tags, creator, trace_context, task_version,
      node_name)
    select p_partition_key, i.id,
           case when octet_length(i.payload) > 256 or i.o ->> 'trace_context' is not null
             then i.payload end,
           (i.o ->> 'policy')::jsonb, nullif((i.o ->> 'tags')::jsonb, '{}'), i.o ->> 'creator',
           i.o ->> 'trace_context', i.o ->> 'task_version', i.name
    from (
      select u.id, u.n, coalesce(u.payload, v_payload) as payload,
             coalesce(u.options, v_shared) as o, u.name
      from unnest(p_execution_ids, p_payloads, v_options, p_node_names)
        with ordinality u(id, payload, options, name, n)) i
    where (octet_length(i.payload) > 256 or i.o ?| v_body or i.name is not null)
      and (cardinality(created) = cardinality(p_execution_ids) or i.id = any (created))
      and i.n <> all (p_skip) and i.n <> all (seconds);
  end if;
end;
$$;
