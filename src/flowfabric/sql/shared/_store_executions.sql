-- Store judged executions: their rows, events and bodies. Only this function writes them, for
-- submit_executions (also on behalf of submit_json and schedules) and for submit_flow.
--
-- Arrays and options are those of submit_executions: an array of one value applies to all items.
-- Items in p_skip are left out. p_has_large says whether a payload may be too large for the row (256
-- bytes). Members of a flow pass its id and their names; p_waits marks members with upstream
-- members, p_feeds marks members with downstream members. Returns the created ids, and in `seconds`
-- the items whose id an earlier item has. The caller sets the planner settings.
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
  v_body       constant text[] :=
    array['policy', 'tags', 'creator', 'trace_context', 'task_version'];
  v_route_id   constant bigint := case when cardinality(p_route_ids) = 1 then p_route_ids[1] end;
  v_payload    constant bytea := case when cardinality(p_payloads) = 1 then p_payloads[1] end;
  v_encoding   constant text := case when cardinality(p_payload_encodings) = 1
                                  then p_payload_encodings[1] end;
  v_priority   constant integer := case when cardinality(p_priorities) = 1 then p_priorities[1] end;
  v_delay      constant interval := case when cardinality(p_delays) = 1 then p_delays[1] end;
  v_shared     constant jsonb := case when cardinality(p_options) = 1 then p_options[1] end;
  v_options    constant jsonb[] := case when v_shared is null then p_options end;
  v_now        constant timestamptz := ff.now();
  v_xid        constant xid8 := pg_current_xact_id();
  v_generation constant integer := ff._lock_generation(p_partition_key);
  v_has_body   boolean;
  v_has_tags   boolean;
  v_tag_key    text;
  v_id         uuid;
begin
  created := '{}';
  seconds := '{}';
  if cardinality(p_skip) = cardinality(p_execution_ids) then
    return;
  end if;
  v_has_tags := coalesce(v_shared ? 'tags', false);
  v_has_body := p_has_large or p_node_names is not null or coalesce(v_shared ?| v_body, false);
  if v_options is not null then
    select bool_or(u.o ? 'tags'), v_has_body or bool_or(u.o ?| v_body) is true
      into v_has_tags, v_has_body
    from unnest(v_options) u(o);
  end if;
  if v_has_tags then
    select m.value into v_tag_key from ff.meta m where m.name = 'instance_tag_key';
  end if;

  for v_id in
    with stored as (
      insert into ff.execution (
        partition_key, execution_id, route_id, namespace, rank, created_at, order_at,
        transitioned_at, mutated_at, version, phase, ownership, eligibility, blocking_reason,
        outcome, attempt_state, cause, delayed_until, due_at, deadline_at, attempt_timeout,
        retention, max_reclaims, instance_tag, payload_encoding, payload, has_payload, has_body,
        parent_id, ends_with_parent, flow_id, is_awaited)
      select p_partition_key, i.id, i.route_id, p_namespace,
             9000 - least(greatest(coalesce(i.priority, 0), 0), 9000),
             v_now, v_now, v_now, v_now, 1, 'runnable', 'unowned',
             case when i.waits then 'blocked_by_dependencies'::ff.eligibility
                  when t.until_at is null then 'eligible_now'
                  else 'not_eligible_until_time' end,
             case when i.waits then 'waiting_for_children'::ff.blocking_reason
                  when t.until_at is null then 'waiting_for_worker'
                  else 'waiting_for_delay' end,
             'none', 'pending_first_attempt', 'submit', t.until_at,
             least(t.until_at, t.deadline_at), t.deadline_at,
             interval '1 millisecond'
               * (i.policy #>> '{timeout_policy,attempt_timeout_ms}')::double precision,
             interval '1 millisecond' * (i.policy ->> 'retention_ms')::double precision,
             coalesce(i.max_reclaims, (i.policy ->> 'max_reclaim_count')::numeric, 100),
             i.tags ->> v_tag_key, i.encoding,
             -- with a trace context the payload goes to the body: the claim reads both there
             case when octet_length(i.payload) <= 256 and not i.has_trace then i.payload end,
             i.payload is not null,
             i.has_body or octet_length(i.payload) > 256 is true or i.name is not null,
             i.parent_id, i.with_parent, p_flow_id, coalesce(i.feeds, false)
      -- Shared options are parsed once, other options once per item.
      from (
        select (v_shared ->> 'delayed_until')::timestamptz as delayed_until,
               (v_shared ->> 'deadline_at')::timestamptz as deadline_at,
               (v_shared ->> 'deadline_ms')::double precision as deadline_ms,
               (v_shared ->> 'policy')::jsonb as policy,
               (v_shared ->> 'max_reclaims')::numeric as max_reclaims,
               (v_shared ->> 'tags')::jsonb as tags,
               (v_shared ->> 'parent_id')::uuid as parent_id,
               coalesce((v_shared ->> 'with_parent')::boolean, false) as with_parent,
               v_shared ->> 'trace_context' is not null as has_trace,
               coalesce(v_shared ?| v_body, false) as has_body
        offset 0) s
      cross join lateral (
        select u.id, u.n, coalesce(u.route_id, v_route_id) as route_id,
               coalesce(u.payload, v_payload) as payload,
               coalesce(u.encoding, v_encoding) as encoding,
               coalesce(u.priority, v_priority) as priority, coalesce(u.delay, v_delay) as delay,
               coalesce((u.options ->> 'delayed_until')::timestamptz, s.delayed_until)
                 as delayed_until,
               coalesce((u.options ->> 'deadline_at')::timestamptz, s.deadline_at) as deadline_at,
               coalesce((u.options ->> 'deadline_ms')::double precision, s.deadline_ms)
                 as deadline_ms,
               coalesce((u.options ->> 'policy')::jsonb, s.policy) as policy,
               coalesce((u.options ->> 'max_reclaims')::numeric, s.max_reclaims) as max_reclaims,
               coalesce((u.options ->> 'tags')::jsonb, s.tags) as tags,
               coalesce((u.options ->> 'parent_id')::uuid, s.parent_id) as parent_id,
               coalesce((u.options ->> 'with_parent')::boolean, s.with_parent) as with_parent,
               u.options ->> 'trace_context' is not null or s.has_trace as has_trace,
               coalesce(u.options ?| v_body, s.has_body) as has_body,
               u.name, u.waits, u.feeds
        from unnest(p_execution_ids, p_route_ids, p_payloads, p_payload_encodings, p_priorities,
                    p_delays, v_options, p_node_names, p_waits, p_feeds)
          with ordinality u(id, route_id, payload, encoding, priority, delay, options, name, waits,
                            feeds, n)) i
      cross join lateral (
        select case when coalesce(i.delayed_until, v_now + i.delay) > v_now
                 then coalesce(i.delayed_until, v_now + i.delay) end as until_at,
               coalesce(i.deadline_at, v_now + interval '1 millisecond' * i.deadline_ms)
                 as deadline_at) t
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
           -- only if not the default; a later change of priority is compared with it
           case when s.rank <> 9000 then jsonb_build_object('priority', 9000 - s.rank) end
    from stored s
    returning execution_id
  loop
    created := created || v_id;
  end loop;

  -- Items with the same id: the first one was created, and only its body may be stored.
  if cardinality(created) <> cardinality(p_execution_ids) - cardinality(p_skip) then
    seconds := array(
      select s.n
      from (select u.n, row_number() over (partition by u.id order by u.n) as nth
            from unnest(p_execution_ids) with ordinality u(id, n)
            where u.n <> all (p_skip)) s
      where s.nth > 1);
  end if;
  if v_has_body then
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
      and i.id = any (created) and i.n <> all (p_skip) and i.n <> all (seconds);
  end if;
end;
$$;
