-- Store new executions.
--
-- A route says where an execution belongs; it must be registered in p_namespace. The caller mints the
-- ids, so a call may be repeated. Every other array has one value per item, or a single value that
-- applies to all items; it may be null if no item needs it. Rare fields are options, one JSON object
-- per item:
--   delayed_until, deadline_ms or deadline_at · policy and tags (objects, or text that holds one)
--   max_reclaims · creator · trace_context · task_version
--   key, key_fingerprint (hexadecimal), key_scope (window, unfinished), key_window_ms
--   parent_id, with_parent (whether it ends when its parent ends)
-- If a key was used within its window (or its execution is unfinished), the answer is the first
-- execution with that key; the same key with another fingerprint is refused, and the answer names that
-- execution and its task. A child is stored only if its parent exists; a bound child only if its parent has not ended. The id of a trimmed execution
-- stays taken while its events are kept. Returns one row for each item that was not created; no row
-- means that all were.
--
-- Moves:    nothing -> runnable eligible (T1) · nothing -> runnable delayed (T2)
-- Refuses:  WF001 invalid_input · per item: invalid (field, problem) · unknown_route · lane_closed · key_reused
--           · parent_ended · busy
-- Locks:    waits for none; tries to lock the parents of bound children in id order, and keys
-- Replay:   duplicate, with the id of the first
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
  v_nil        constant uuid := '00000000-0000-0000-0000-000000000000';
  v_size       constant integer := cardinality(p_execution_ids);
  v_closed     bigint[];
  v_lanes      text[];
  v_largest    integer;
  v_options    jsonb[];
  v_has_keys   boolean;
  v_is_bound   boolean;
  v_is_child   boolean;
  v_refused    ff.verdict[] := '{}';
  v_skip       integer[] := '{}';
  v_stored     record;
begin
  perform ff._check_namespace(p_namespace);
  -- an array of one value applies to all items
  perform ff._check_batch(v_size, array[
    nullif(cardinality(p_route_ids), 1), nullif(cardinality(p_payloads), 1),
    nullif(cardinality(p_payload_encodings), 1), nullif(cardinality(p_priorities), 1),
    nullif(cardinality(p_delays), 1), nullif(cardinality(p_options), 1)]);

  if p_partition_key is distinct from 0 then
    -- No worker would ever claim from a partition that does not exist.
    if p_partition_key is null or p_partition_key not between 0 and (
         select m.value::integer - 1 from ff.meta m where m.name = 'partitions') then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'partition_key', 'problem', 'there is no such partition'));
    end if;
  end if;

  if cardinality(p_route_ids) = 1 and p_route_ids[1] is not null then
    select array[l.lane], case when l.state in ('draining', 'disabled') then p_route_ids end
      into v_lanes, v_closed
    from ff.route r
    join ff.lane l on l.namespace = r.namespace and l.lane = r.lane
    where r.route_id = p_route_ids[1] and r.namespace = p_namespace and r.code_version is null;
    if not found then
      v_closed := p_route_ids;
    end if;
  else
    select array_agg(distinct l.lane),
           array_agg(u.route_id) filter (where l.state is null or l.state in ('draining', 'disabled'))
      into v_lanes, v_closed
    from (select distinct x.route_id from unnest(p_route_ids) x(route_id)) u
    left join ff.route r
      on r.route_id = u.route_id and r.namespace = p_namespace and r.code_version is null
    left join ff.lane l on l.namespace = r.namespace and l.lane = r.lane;
  end if;

  -- Judge every item only if the call has something to judge. `= any` is null if an id is null.
  v_largest := coalesce(
    (select max(octet_length(u.payload)) from unnest(p_payloads) u(payload)), 0);
  if v_closed is not null or (v_nil = any (p_execution_ids)) is not false or v_largest > 1048576
     or array_ndims(p_route_ids) > 1 or array_position(p_route_ids, null) is not null
     or num_nonnulls(p_route_ids) = 0
     or num_nonnulls(p_payload_encodings, p_delays) > 0 or cardinality(p_options) > 1
     or ff._options_problem(p_options[1]) is not null or p_options[1] ? 'with_parent' then
    v_refused := ff._judge_submits(p_namespace, p_execution_ids, p_route_ids, v_closed, p_payloads,
                                   p_payload_encodings, p_delays, p_options);
  end if;
  -- A trimmed execution whose events are kept was submitted before: a late repeat must not run it
  -- again. Such ids exist only where the retention is shorter than that of events.
  if exists (select from ff.event_trim t where t.partition_key = p_partition_key) then
    v_refused := ff._judge_trimmed(p_partition_key, p_namespace, p_execution_ids, v_refused);
  end if;
  if cardinality(v_refused) > 0 then
    v_skip := array(select r.item from unnest(v_refused) r);
  end if;
  if p_options is not null then
    v_options := p_options;
    v_has_keys := v_options[1] ? 'key';
    v_is_bound := v_options[1] ? 'with_parent';
    v_is_child := v_options[1] ? 'parent_id';
    if cardinality(v_options) > 1 then
      select bool_or(u.o ? 'key'), bool_or(u.o ? 'with_parent'), bool_or(u.o ? 'parent_id')
        into v_has_keys, v_is_bound, v_is_child
      from unnest(v_options) u(o);
    elsif v_size > 1 and (v_has_keys or v_is_child) then
      v_options := array_fill(v_options[1], array[v_size]);
    end if;
    if v_is_bound and v_is_child then
      v_refused := v_refused || ff._lock_parents(
        p_partition_key, p_namespace, v_skip, p_execution_ids, v_options);
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
  return query
  -- An item that exists is a duplicate, even if its lane was closed or its parent ended since.
  select r.item,
         case when r.word <> 'key_reused' and x.task is not null then 'duplicate' else r.word end,
         r.execution_id,
         case when r.word = 'key_reused' then r.detail || jsonb_build_object('task', x.task)
              when x.task is null then r.detail end
  from unnest(v_refused) r
  left join lateral (
    select o.task from ff.execution e join ff.route o on o.route_id = e.route_id
    where r.word in ('lane_closed', 'parent_ended', 'key_reused')
      and e.partition_key = p_partition_key and e.execution_id = r.execution_id
      and e.namespace = p_namespace
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
    and (u.id <> all (v_stored.created) or u.n = any (v_stored.seconds));
end;
$$;
