-- Store new executions.
--
-- The route of an execution must be registered in p_namespace. The caller makes the ids, so a call
-- can be repeated. Every array other than the ids has one value per item, or a single value for all
-- items. An array can be null if no item needs it. Rare fields are options, one JSON object per
-- item:
--
--   delayed_until · deadline_ms or deadline_at · policy, tags (JSON objects, or their text) ·
--   max_reclaims · creator · trace_context · task_version ·
--   key · key_fingerprint (hexadecimal) · key_scope (window or unfinished) · key_window_ms ·
--   key_partitions (the number of partitions by which the caller chose the partition of the key) ·
--   parent_id · with_parent (whether the execution ends when its parent ends) ·
--   quotas, budgets (arrays of ids from register_gates, as text or numbers) · fair_key (text)
--
-- If the key of an item is in use, the item is not stored, and the answer names the first execution
-- with that key. A key with the scope `window` is in use during its window. A key with the scope
-- `unfinished` is in use until its execution has ended. key_fingerprint is a hash of the task and
-- its arguments. If the item has the key_fingerprint of the first execution, the outcome is
-- duplicate. If not, the outcome is key_reused, and the answer also names the task of the first
-- execution. An item whose key_partitions is outdated is refused as invalid, because its key may
-- belong to another partition now.
--
-- A child is stored only if its parent exists. If the child is bound to its parent, the parent must
-- also be unfinished. The id of a trimmed execution stays taken while its events are kept.
--
-- Returns one row for each item that was not created. No row means that all items were created.
--
-- Moves:    (new) -> runnable eligible (T1) · (new) -> runnable delayed (T2)
-- Refuses:  WF001 invalid_input · per item: invalid (field, problem) · unknown_route · lane_closed
--           · key_reused · parent_ended · busy · unknown_gate (gate_ids)
--           · limit_reached (gate_id, quota, key)
-- Locks:    the parents of bound children in id order, keys in key order, fair keys, then the lines
--           that items join, skipping locked ones. Waits up to 2 s, but only for a concurrent
--           submit of the same id. Above READ COMMITTED, items with a key also lock the number of
--           partitions in ff.meta
-- Repeat:   `duplicate`, with the id of the first execution
-- Rights:   app
drop function if exists ff.submit_executions;
create function ff.submit_executions(
  p_partition_key     smallint,
  p_namespace         text,
  p_execution_ids     uuid[],
  p_route_ids         bigint[],
  p_payloads          bytea[],
  p_payload_encodings text[] default null,
  p_priorities        integer[] default null,
  p_delays            interval[] default null,
  p_options           jsonb[] default null,
  p_hint              boolean default true
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
  v_nil         constant uuid := '00000000-0000-0000-0000-000000000000';
  v_size        constant integer := cardinality(p_execution_ids);
  v_closed      bigint[];
  v_is_limited  boolean;
  v_lanes       text[];
  v_largest     integer;
  v_options     jsonb[];
  v_has_keys    boolean;
  v_is_bound    boolean;
  v_is_child    boolean;
  v_is_gated    boolean;
  v_refused     ff.verdict[] := '{}';
  v_trimmed     ff.verdict[];
  v_skip        integer[] := '{}';
  v_stored      record;
  v_ids         uuid[];
  v_known_ids   uuid[];
  v_routes      bigint[];
  v_known_tasks text[];
  v_taken_ids   uuid[];
  v_our_ids     uuid[];
begin
  perform ff._check_namespace(p_namespace);
  -- An array of one value applies to all items.
  perform ff._check_batch(v_size, array[
    array_upper(p_execution_ids, 1),
    nullif(cardinality(p_route_ids), 1), nullif(cardinality(p_payloads), 1),
    nullif(cardinality(p_payload_encodings), 1), nullif(cardinality(p_priorities), 1),
    nullif(cardinality(p_delays), 1), nullif(cardinality(p_options), 1)],
    p_firsts => array[
      array_lower(p_route_ids, 1), array_ndims(p_route_ids),
      array_lower(p_payloads, 1), array_ndims(p_payloads),
      array_lower(p_payload_encodings, 1), array_ndims(p_payload_encodings),
      array_lower(p_priorities, 1), array_ndims(p_priorities),
      array_lower(p_delays, 1), array_ndims(p_delays),
      array_lower(p_options, 1), array_ndims(p_options)]);

  if p_partition_key is distinct from 0 then
    -- No worker would ever claim from a partition that does not exist.
    if p_partition_key is null or p_partition_key not between 0 and (
         select m.value::integer - 1 from ff.meta m where m.name = 'partitions') then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'partition_key', 'problem', 'there is no such partition'));
    end if;
  end if;

  if cardinality(p_route_ids) = 1 and p_route_ids[1] is not null then
    select array[l.lane], case when l.state in ('draining', 'disabled') then p_route_ids end,
           r.is_limited
      into v_lanes, v_closed, v_is_limited
    from ff.route r
    join ff.lane l on l.namespace = r.namespace and l.lane = r.lane
    where r.route_id = p_route_ids[1] and r.namespace = p_namespace and r.code_version is null;
    if not found then
      v_closed := p_route_ids;
    end if;
  else
    select array_agg(distinct l.lane),
           array_agg(u.route_id) filter (where l.state is null or l.state in ('draining', 'disabled')),
           bool_or(r.is_limited)
      into v_lanes, v_closed, v_is_limited
    from (select distinct x.route_id from unnest(p_route_ids) x(route_id)) u
    left join ff.route r
      on r.route_id = u.route_id and r.namespace = p_namespace and r.code_version is null
    left join ff.lane l on l.namespace = r.namespace and l.lane = r.lane;
  end if;

  if v_is_limited then
    p_options := coalesce(p_options, array['{}'::jsonb]);
  end if;

  -- Judge the items only if something in the call may be wrong. (`= any` is null if an id is null.)
  v_largest := coalesce(
    (select max(octet_length(u.payload)) from unnest(p_payloads) u(payload)), 0);
  if v_closed is not null or (v_nil = any (p_execution_ids)) is not false or v_largest > 1048576
     or array_position(p_route_ids, null) is not null
     or num_nonnulls(p_route_ids) = 0
     or num_nonnulls(p_payload_encodings, p_delays) > 0 or cardinality(p_options) > 1
     or ff._options_problem(p_options[1]) is not null or p_options[1] ? 'with_parent' then
    v_refused := ff._judge_submits(p_namespace, p_execution_ids, p_route_ids, v_closed, p_payloads,
                                   p_payload_encodings, p_delays, p_options);
  end if;
  -- A late repeat must not run a trimmed execution again. The id of the execution is known while
  -- its events are kept. Events outlive their execution only if it was trimmed early.
  if exists (select from ff.event_trim t where t.partition_key = p_partition_key) then
    -- An item that was refused before is not judged again, unless only its lane was closed.
    v_trimmed := ff._judge_trimmed(p_partition_key, p_namespace, p_execution_ids, array(
      select r.item from unnest(v_refused) r where r.word <> 'lane_closed'));
    v_refused := v_trimmed || array(
      select r from unnest(v_refused) r
      where not exists (select from unnest(v_trimmed) t where t.item = r.item));
  end if;
  if cardinality(v_refused) > 0 then
    v_skip := array(select r.item from unnest(v_refused) r);
  end if;
  if cardinality(v_skip) > 0 and p_options is not null then
    -- The options of a refused item may have any form, so nothing below may read them.
    p_options := case
      when cardinality(p_options) > 1 then array(
        select case when u.n = any (v_skip) then '{}' else u.o end
        from unnest(p_options) with ordinality u(o, n)
        order by u.n)
      when cardinality(v_skip) = v_size then array['{}'::jsonb]
      else p_options end;
  end if;
  if p_options is not null then
    v_options := p_options;
    v_has_keys := v_options[1] ? 'key';
    v_is_bound := v_options[1] ? 'with_parent';
    v_is_child := v_options[1] ? 'parent_id';
    v_is_gated := v_options[1] ?| array['quotas', 'budgets'];
    if cardinality(v_options) > 1 then
      select bool_or(u.o ? 'key'), bool_or(u.o ? 'with_parent'), bool_or(u.o ? 'parent_id'),
             bool_or(u.o ?| array['quotas', 'budgets'])
        into v_has_keys, v_is_bound, v_is_child, v_is_gated
      from unnest(v_options) u(o);
    elsif v_size > 1 and (v_has_keys or v_is_child) then
      v_options := array_fill(v_options[1], array[v_size]);
    end if;
    if v_is_gated then
      v_refused := v_refused || ff._judge_gates(
        p_partition_key, p_namespace, v_skip, p_execution_ids, p_options);
      v_skip := array(select r.item from unnest(v_refused) r);
    end if;
    if v_is_bound and v_is_child then
      v_refused := v_refused || ff._bind_to_parents(
        p_partition_key, p_namespace, v_skip, p_execution_ids, v_options);
      v_skip := array(select r.item from unnest(v_refused) r);
    end if;
    if v_is_limited then
      v_refused := v_refused || ff._judge_limits(
        p_partition_key, p_namespace, v_skip, p_execution_ids, p_route_ids, p_options);
      v_skip := array(select r.item from unnest(v_refused) r);
    end if;
    if v_is_child then
      v_refused := v_refused || ff._judge_parents(
        p_partition_key, p_namespace, v_skip, p_execution_ids, v_options);
      v_skip := array(select r.item from unnest(v_refused) r);
    end if;
    if v_has_keys then
      v_refused := v_refused || ff._reserve_keys(
        p_partition_key, p_namespace, v_skip, p_execution_ids, v_options);
      v_skip := array(select r.item from unnest(v_refused) r);
    end if;
  end if;
  v_stored := ff._store_executions(
    p_partition_key, p_namespace, v_skip, p_execution_ids, p_route_ids, p_payloads, v_largest > 256,
    p_payload_encodings, p_priorities, p_delays, p_options);

  if p_hint and v_stored.created <> '{}' then
    perform pg_notify('ff_ready', concat_ws(' ', p_partition_key, p_namespace, l.lane))
    from unnest(v_lanes) l(lane)
    where l.lane is not null;
  end if;
  if cardinality(v_stored.created) = v_size then
    return;
  end if;
  -- An item whose execution exists is a duplicate, even if its lane has been closed or its parent
  -- has ended since.
  v_ids := array(
    select r.execution_id from unnest(v_refused) r
    where r.word in ('lane_closed', 'parent_ended', 'key_reused', 'limit_reached'));
  if cardinality(v_ids) > 0 then
    select array_agg(e.execution_id), array_agg(e.route_id) into v_known_ids, v_routes
    from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = any (v_ids)
      and e.namespace = p_namespace;
    v_known_tasks := array(
      select o.task from unnest(v_routes) with ordinality u(id, n)
      join ff.route o on o.route_id = u.id
      order by u.n);
  end if;
  select array_agg(e.execution_id),
         array_agg(e.execution_id) filter (where e.namespace = p_namespace)
    into v_taken_ids, v_our_ids
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = any (p_execution_ids);
  return query
  select r.item,
         case when r.word <> 'key_reused' and x.task is not null then 'duplicate' else r.word end,
         r.execution_id,
         case when r.word = 'key_reused' then r.detail || jsonb_build_object('task', x.task)
              when x.task is null then r.detail end
  from unnest(v_refused) r
  left join unnest(v_known_ids, v_known_tasks) x(id, task) on x.id = r.execution_id
  union all
  select u.n::integer, case when u.id = any (v_our_ids) then 'duplicate' else 'invalid' end, u.id,
         case when (u.id = any (v_our_ids)) is not true then jsonb_build_object(
           'field', 'execution_id', 'problem', 'is taken: make a new one') end
  from unnest(p_execution_ids) with ordinality u(id, n)
  where u.id = any (v_taken_ids) and u.n <> all (v_skip)
    and (u.id <> all (v_stored.created) or u.n = any (v_stored.seconds));
end;
$$;
