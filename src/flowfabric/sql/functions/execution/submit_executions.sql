-- Store new executions.
--
-- A route names where an execution belongs; it must have been registered in p_namespace. The caller
-- mints the ids, so a call may be repeated. With a key, the first execution that used it within its
-- window (or while it is unfinished) is the answer; the same key with another fingerprint is
-- refused. A child is stored only if its parent is there, and one that ends with its parent only while
-- that has not ended. The id of an execution that was trimmed stays taken as long as its events are
-- kept. Arrays that no item needs may be null. Returns a row for every item that was not created; no
-- row means all of them were.
--
-- Moves:    nothing -> runnable eligible (T1) · nothing -> runnable delayed (T2)
-- Refuses:  WF001 invalid_input · per item: invalid (field, problem) · unknown_route · lane_closed · key_reused
--           · parent_ended · busy
-- Locks:    none waited for; parents that children end with, in id order, and keys are tried, not
--           awaited
-- Replay:   duplicate, with the id of the first
-- Rights:   app
drop function if exists ff.submit_executions;
create function ff.submit_executions(
  p_partition_key     smallint,
  p_namespace         text,
  p_execution_ids     uuid[],
  p_route_ids         bigint[],
  p_payloads          bytea[],
  p_priorities        integer[] default null,
  p_payload_encodings text[] default null,
  p_delays            interval[] default null,
  p_delayed_untils    timestamptz[] default null,
  p_deadlines         interval[] default null,
  p_deadline_ats      timestamptz[] default null,
  p_policies          text[] default null,
  p_max_reclaims      integer[] default null,
  p_tags              text[] default null,
  p_creators          text[] default null,
  p_keys              text[] default null,
  p_key_fingerprints  bytea[] default null,
  p_key_scopes        text[] default null,
  p_key_windows       interval[] default null,
  p_hint              boolean default true,
  p_parent_ids        uuid[] default null,
  p_with_parents      boolean[] default null,
  p_trace_contexts    text[] default null,
  p_task_versions     text[] default null
)
returns table (item integer, outcome text, execution_id uuid, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_nil        constant uuid := '00000000-0000-0000-0000-000000000000';
  v_now        timestamptz;
  v_xid        xid8;
  v_closed     bigint[];
  v_lanes      text[];
  v_is_suspect boolean;
  v_has_body   boolean;
  v_tag_key    text;
  v_refused    ff.verdict[] := '{}';
  v_skip       integer[] := '{}';
  v_second     integer[] := '{}';
  v_created    uuid[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(cardinality(p_execution_ids), array[
    cardinality(p_route_ids), cardinality(p_payloads), cardinality(p_priorities),
    cardinality(p_payload_encodings), cardinality(p_delays), cardinality(p_delayed_untils),
    cardinality(p_deadlines), cardinality(p_deadline_ats), cardinality(p_policies),
    cardinality(p_max_reclaims), cardinality(p_tags), cardinality(p_creators), cardinality(p_keys),
    cardinality(p_key_fingerprints), cardinality(p_key_scopes), cardinality(p_key_windows),
    cardinality(p_parent_ids), cardinality(p_with_parents), cardinality(p_trace_contexts),
    cardinality(p_task_versions)]);

  if p_partition_key is distinct from 0 then
    -- Nobody would ever look into a partition that is not there.
    if p_partition_key is null or p_partition_key not between 0 and (
         select m.value::integer - 1 from ff.meta m where m.name = 'partitions') then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'partition_key', 'problem', 'there is no such partition'));
    end if;
  end if;

  select array_agg(distinct l.lane),
         array_agg(u.route_id) filter (where l.state is null or l.state in ('draining', 'disabled'))
    into v_lanes, v_closed
  from (select distinct x.route_id from unnest(p_route_ids) x(route_id)) u
  left join ff.route r on r.route_id = u.route_id and r.namespace = p_namespace
  left join ff.lane l on l.namespace = r.namespace and l.lane = r.lane;

  -- The closer look at every item is for calls that have something to look at.
  select coalesce(bool_or(u.id is null or v_nil in (u.id, u.parent_id)
                          or octet_length(u.payload) > 1048576
                          or u.max_reclaims not between 0 and 1000000), false),
         coalesce(bool_or(octet_length(u.payload) > 256), false)
    into v_is_suspect, v_has_body
  from unnest(p_execution_ids, p_payloads, p_max_reclaims, p_parent_ids)
    u(id, payload, max_reclaims, parent_id);
  v_has_body := v_has_body or p_policies is not null or p_tags is not null
                or p_creators is not null or p_trace_contexts is not null
                or p_task_versions is not null;
  if v_is_suspect or v_closed is not null or array_ndims(p_route_ids) > 1
     or array_position(p_route_ids, null) is not null
     or num_nonnulls(p_route_ids) = 0
     or num_nonnulls(p_payload_encodings, p_delays, p_delayed_untils, p_deadlines, p_deadline_ats,
                     p_policies, p_tags, p_creators, p_keys, p_with_parents, p_trace_contexts,
                     p_task_versions) > 0 then
    v_refused := ff._judge_submits(
      p_namespace, p_execution_ids, p_route_ids, v_closed, p_payloads, p_payload_encodings,
      p_delays, p_delayed_untils, p_deadlines, p_deadline_ats, p_policies, p_max_reclaims, p_tags,
      p_creators, p_keys, p_key_fingerprints, p_key_scopes, p_key_windows, p_parent_ids,
      p_with_parents, p_trace_contexts, p_task_versions);
  end if;
  -- What ended and was trimmed while its events are kept was submitted before: a repeat that comes
  -- so late must not run it again. Only a retention shorter than that of events leaves such ids.
  if exists (select from ff.event_trim t where t.partition_key = p_partition_key) then
    v_refused := ff._judge_trimmed(p_partition_key, p_namespace, p_execution_ids, v_refused);
  end if;
  if cardinality(v_refused) > 0 then
    v_skip := array(select r.item from unnest(v_refused) r);
  end if;
  if p_with_parents is not null then
    v_refused := v_refused || ff._lock_parents(
      p_partition_key, p_namespace, v_skip, p_execution_ids, p_parent_ids, p_with_parents);
    v_skip := array(select r.item from unnest(v_refused) r);
  end if;
  if p_parent_ids is not null then
    v_refused := v_refused || ff._judge_parents(
      p_partition_key, p_namespace, v_skip, p_execution_ids, p_parent_ids);
    v_skip := array(select r.item from unnest(v_refused) r);
  end if;
  if p_keys is not null then
    v_refused := v_refused || ff._reserve_keys(
      p_partition_key, p_namespace, v_skip, p_execution_ids, p_keys, p_key_fingerprints,
      p_key_scopes, p_key_windows);
    v_skip := array(select r.item from unnest(v_refused) r);
  end if;
  if p_tags is not null then
    select m.value into v_tag_key from ff.meta m where m.name = 'instance_tag_key';
  end if;
  v_now := ff.now();
  v_xid := pg_current_xact_id();

  with created as (
    insert into ff.execution (
      partition_key, execution_id, route_id, namespace, rank, created_at, order_at, transitioned_at,
      mutated_at, version, phase, ownership, eligibility, blocking_reason, outcome, attempt_state,
      cause, delayed_until, due_at, deadline_at, attempt_timeout, retention, max_reclaims,
      instance_tag, payload_encoding, payload, has_payload, has_body, parent_id, ends_with_parent)
    select p_partition_key, u.id, u.route_id, p_namespace,
           9000 - least(greatest(coalesce(u.priority, 0), 0), 9000),
           v_now, v_now, v_now, v_now, 1, 'runnable', 'unowned',
           case when w.until_at is null then 'eligible_now'::ff.eligibility
                else 'not_eligible_until_time' end,
           case when w.until_at is null then 'waiting_for_worker'::ff.blocking_reason
                else 'waiting_for_delay' end,
           'none', 'pending_first_attempt', 'submit', w.until_at,
           least(w.until_at, u.deadline_at, v_now + u.deadline),
           coalesce(u.deadline_at, v_now + u.deadline),
           case when u.policy is not null then interval '1 millisecond'
             * (u.policy::jsonb #>> '{timeout_policy,attempt_timeout_ms}')::double precision end,
           case when u.policy is not null then interval '1 millisecond'
             * (u.policy::jsonb ->> 'retention_ms')::double precision end,
           coalesce(u.max_reclaims, (u.policy::jsonb ->> 'max_reclaim_count')::numeric, 100),
           case when v_tag_key is not null then u.tags::jsonb ->> v_tag_key end,
           u.encoding,
           -- a trace context rides with the payload: the claim looks for both in one place
           case when octet_length(u.payload) <= 256 and u.trace_context is null then u.payload end,
           u.payload is not null,
           octet_length(u.payload) > 256 is true
             or num_nonnulls(u.policy, u.tags, u.creator, u.trace_context, u.task_version) > 0,
           u.parent_id, coalesce(u.with_parent, false)
    from unnest(p_execution_ids, p_route_ids, p_payloads, p_priorities, p_payload_encodings,
                p_delays, p_delayed_untils, p_deadlines, p_deadline_ats, p_policies,
                p_max_reclaims, p_tags, p_parent_ids, p_with_parents, p_trace_contexts, p_creators,
                p_task_versions)
      with ordinality u(id, route_id, payload, priority, encoding, delay, delayed_until, deadline,
                        deadline_at, policy, max_reclaims, tags, parent_id, with_parent,
                        trace_context, creator, task_version, n)
    cross join lateral (
      select case when coalesce(u.delayed_until, v_now + u.delay) > v_now
               then coalesce(u.delayed_until, v_now + u.delay) end as until_at) w
    where u.n <> all (v_skip)
    order by u.id, u.n
    on conflict do nothing
    returning execution_id, route_id, instance_tag, rank
  ),
  logged as (
    insert into ff.event (
      partition_key, xid, execution_id, version, kind, route_id, namespace, instance_tag,
      occurred_at, detail)
    select p_partition_key, v_xid, c.execution_id, 1, 'submitted', c.route_id, p_namespace,
           c.instance_tag, v_now,
           -- what is not the default: a later change is compared with it
           case when c.rank <> 9000 then jsonb_build_object('priority', 9000 - c.rank) end
    from created c
  )
  select array_agg(c.execution_id) into v_created from created c;

  -- Of the items with one id the first was created; no other may lend it its body.
  if cardinality(v_created) is distinct from cardinality(p_execution_ids) - cardinality(v_skip) then
    v_second := array(
      select s.n
      from (select u.n, row_number() over (partition by u.id order by u.n) as nth
            from unnest(p_execution_ids) with ordinality u(id, n)
            where u.n <> all (v_skip)) s
      where s.nth > 1);
  end if;
  if v_has_body then
    insert into ff.execution_body (
      partition_key, execution_id, payload, policy, tags, creator, trace_context, task_version)
    select p_partition_key, u.id,
           case when octet_length(u.payload) > 256 or u.trace_context is not null
             then u.payload end,
           u.policy::jsonb, nullif(u.tags::jsonb, '{}'), u.creator, u.trace_context, u.task_version
    from unnest(p_execution_ids, p_payloads, p_policies, p_tags, p_creators, p_trace_contexts,
                p_task_versions)
      with ordinality u(id, payload, policy, tags, creator, trace_context, task_version, n)
    where (octet_length(u.payload) > 256 or u.policy is not null or u.tags is not null
           or u.creator is not null or u.trace_context is not null or u.task_version is not null)
      and u.id = any (v_created) and u.n <> all (v_skip) and u.n <> all (v_second);
  end if;

  if p_hint and v_created is not null then
    perform pg_notify('ff_ready', concat_ws(' ', p_partition_key, p_namespace, l.lane))
    from unnest(v_lanes) l(lane)
    where l.lane is not null;
  end if;
  if cardinality(v_created) = cardinality(p_execution_ids) then
    return;
  end if;
  return query
  -- A lane that was closed since, or a parent that ended, does not take back what was accepted.
  select r.item, case when x.is_there then 'duplicate' else r.word end, r.execution_id,
         case when x.is_there then null else r.detail end
  from unnest(v_refused) r
  left join lateral (
    select true as is_there from ff.execution e
    where r.word in ('lane_closed', 'parent_ended') and e.partition_key = p_partition_key
      and e.execution_id = r.execution_id and e.namespace = p_namespace
    offset 0) x on true
  union all
  select u.n::integer, case when x.is_ours then 'duplicate' else 'invalid' end, u.id,
         case when not x.is_ours then jsonb_build_object(
           'field', 'execution_id', 'problem', 'is taken: make a new one') end
  from unnest(p_execution_ids) with ordinality u(id, n)
  cross join lateral (
    select e.namespace = p_namespace as is_ours from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = u.id
    offset 0) x
  where u.n <> all (v_skip)
    and (u.id <> all (coalesce(v_created, '{}')) or u.n = any (v_second));
end;
$$;
