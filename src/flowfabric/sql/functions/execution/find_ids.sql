-- Find executions and flows of a partition by a UUID, or by the last digits of one.
--
-- p_text consists of hexadecimal digits; hyphens do not count. 32 digits are a whole UUID. 8 to 31
-- digits are the last digits of a UUID, and are compared with the newest 10 000 executions and the
-- newest 10 000 flows of the partition. The call returns at most 10 executions, newest first, and
-- then at most 10 flows, newest first. A whole UUID also finds an execution that was trimmed but
-- still has events; then state is null and created_at is the time of the first event.
--
-- One more row comes last. It has no id. Its partition_count is the number of partitions that there
-- are, so the caller knows how many to search.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.find_ids;
create function ff.find_ids(
  p_partition_key smallint,
  p_namespace     text,
  p_text          text
)
returns table (
  kind            text,
  id              uuid,
  name            text,
  state           text,
  created_at      timestamptz,
  partition_count integer
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_digits constant text := lower(replace(p_text, '-', ''));
  v_size   constant integer := length(v_digits);
  v_ids    uuid[];
  v_flows  uuid[];
begin
  perform ff._check_namespace(p_namespace);
  if v_digits is null or v_digits !~ '^[0-9a-f]{8,32}$' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'text', 'problem', 'must be 8 to 32 hexadecimal digits'));
  end if;
  if v_size = 32 then
    v_ids := array[v_digits::uuid];
    v_flows := v_ids;
  else
    v_ids := array(
      select s.execution_id
      from (
        select e.execution_id from ff.execution e
        where e.partition_key = p_partition_key
        order by e.execution_id desc
        limit 10000) s
      where right(replace(s.execution_id::text, '-', ''), v_size) = v_digits);
    v_flows := array(
      select s.flow_id
      from (
        select f.flow_id from ff.flow f
        where f.partition_key = p_partition_key
        order by f.flow_id desc
        limit 10000) s
      where right(replace(s.flow_id::text, '-', ''), v_size) = v_digits);
  end if;
  return query
  select 'execution', e.execution_id, r.task, e.public_state::text, e.created_at, null::integer
  from unnest(v_ids) with ordinality u(id, n)
  cross join lateral (
    select x.execution_id, x.route_id, x.public_state, x.created_at
    from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = u.id
      and case when p_namespace is null then true else x.namespace = p_namespace end
    offset 0) e
  cross join lateral (
    select y.task from ff.route y where y.route_id = e.route_id offset 0) r
  order by u.n limit 10;
  if not found and v_size = 32 then
    return query
    select 'execution', v.execution_id, coalesce(r.task, ''), null::text, v.occurred_at,
           null::integer
    from (
      select x.execution_id, x.route_id, x.occurred_at
      from ff.event x
      where x.partition_key = p_partition_key and x.execution_id = v_ids[1]
        and x.kind not in ('flow_cancel_requested', 'webhook_disabled')
        and case when p_namespace is null then true else x.namespace = p_namespace end
      order by x.generation, x.event_id
      limit 1) v
    left join lateral (
      select y.task from ff.route y where y.route_id = v.route_id offset 0) r on true;
  end if;
  return query
  select 'flow', f.flow_id, f.flow_kind, null::text, f.created_at, null::integer
  from unnest(v_flows) with ordinality u(id, n)
  cross join lateral (
    select x.flow_id, x.flow_kind, x.created_at
    from ff.flow x
    where x.partition_key = p_partition_key and x.flow_id = u.id
      and case when p_namespace is null then true else x.namespace = p_namespace end
    offset 0) f
  order by u.n limit 10;
  kind := null; id := null; name := null; state := null; created_at := null;
  partition_count := (select m.value::integer from ff.meta m where m.name = 'partitions');
  return next;
end;
$$;
