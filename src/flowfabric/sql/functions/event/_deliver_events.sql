-- Deliver the next events after a cursor, as ff.read_events describes. The caller has checked that
-- the login may read the namespace.
drop function if exists ff._deliver_events;
create function ff._deliver_events(
  p_partition_key  smallint,
  p_namespace      text,
  p_cursor         text,
  p_limit          integer default 500,
  p_kinds          text[] default null,
  p_lanes          text[] default null,
  p_tasks          text[] default null,
  p_execution_ids  uuid[] default null,
  p_instance_tags  text[] default null
)
returns table (
  event_id           bigint,
  execution_id       uuid,
  version            integer,
  kind               text,
  occurred_at        timestamptz,
  attempt_index      integer,
  lease_id           uuid,
  epoch              bigint,
  worker_instance_id text,
  outcome            text,
  flow_id            uuid,
  namespace          text,
  lane               text,
  task               text,
  instance_tag       text,
  actor              text,
  detail             text,
  next_cursor        text,
  has_more           boolean
)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_snapshot   pg_snapshot;
  v_cursor     record;
  v_generation integer;
  v_is_old     boolean;
  v_own        xid8;
  v_end        xid8;
  v_last       xid8;
  v_unfinished xid8[];
  v_cut        xid8;
  v_checked    xid8;
  v_beyond     xid8;
  v_last_event record;
  v_patterns   text[];
begin
  perform ff._check_limit(p_limit);
  perform ff._check_primary();
  v_cursor := ff._parse_cursor(p_partition_key, p_cursor);
  v_generation := v_cursor.generation;
  v_last := v_cursor.last_xid;
  v_unfinished := v_cursor.unfinished;
  v_snapshot := pg_current_snapshot();
  -- In a pattern * stands for any text and ? for any character.
  v_patterns := array(
    select translate(regexp_replace(t, E'([\\\\%_])', E'\\\\\\1', 'g'), '*?', '%_')
    from unnest(p_tasks) t);

  if v_generation < v_cursor.current
    and not exists (
      select from ff.event e
      where e.partition_key = p_partition_key and e.generation = v_generation and e.xid > v_last)
    and not exists (
      select from unnest(v_unfinished) u(xid)
      cross join lateral (
        select from ff.event x
        where x.partition_key = p_partition_key and x.generation = v_generation and x.xid = u.xid
        limit 1) e)
  then
    select e.generation, '0'::xid8, '{}'::xid8[] into v_generation, v_last, v_unfinished
    from ff.event e
    where e.partition_key = p_partition_key and e.generation > v_cursor.generation
      and e.generation <= v_cursor.current
    order by e.generation
    limit 1;
    if not found then
      v_generation := v_cursor.current;
      v_last := '0';
      v_unfinished := '{}';
    end if;
  end if;
  v_is_old := v_generation < v_cursor.current;
  v_own := case when v_is_old then '0' else coalesce(pg_current_xact_id_if_assigned(), '0') end;
  v_end := case when v_is_old then '18446744073709551615' else pg_snapshot_xmax(v_snapshot) end;

  -- The page ends with the transaction of its last row.
  select e.xid into v_cut
  from ff.event e
  where e.partition_key = p_partition_key and e.generation = v_generation and e.xid > v_last
    and e.xid < v_end
    and e.xid <> v_own and (v_is_old or pg_visible_in_snapshot(e.xid, v_snapshot))
  order by e.xid, e.event_id
  offset p_limit - 1 limit 1;

  -- A transaction that began early may have written late. So of two events of one execution, the
  -- earlier event can have the higher transaction number. Extend the page until every event in it
  -- is preceded by the earlier events of its execution, in this page or in a page delivered before.
  v_checked := v_last;
  while v_cut is not null loop
    select p.xid into v_beyond
    from (
      select e.execution_id, e.event_id
      from ff.event e
      where e.partition_key = p_partition_key and e.generation = v_generation
        and e.xid > v_checked and e.xid <= v_cut and e.version > 1
      union all
      select e.execution_id, e.event_id
      from unnest(v_unfinished) u(xid)
      cross join lateral (
        select x.execution_id, x.event_id from ff.event x
        where x.partition_key = p_partition_key and x.generation = v_generation and x.xid = u.xid
          and x.version > 1
        offset 0) e
      where v_checked = v_last
    ) w
    cross join lateral (
      select b.xid
      from ff.event b
      where b.partition_key = p_partition_key and b.execution_id = w.execution_id
        and b.generation = v_generation and b.event_id < w.event_id
      order by b.event_id desc
      limit 1
    ) p
    where p.xid > v_cut and (v_is_old or pg_visible_in_snapshot(p.xid, v_snapshot))
    order by p.xid desc
    limit 1;
    exit when v_beyond is null;
    v_checked := v_cut;
    v_cut := v_beyond;
  end loop;

  return query
  select e.event_id, e.execution_id, e.version, e.kind::text, e.occurred_at, e.attempt_index,
         e.lease_id, e.epoch, e.worker_instance_id, e.outcome::text, e.flow_id, e.namespace,
         r.lane, r.task, e.instance_tag, e.actor, e.detail::text, null::text, null::boolean
  from (
    select x.event_id, x.execution_id, x.version, x.kind, x.occurred_at, x.attempt_index,
           x.lease_id, x.epoch, x.worker_instance_id, x.outcome, x.flow_id, x.namespace,
           x.instance_tag, x.actor, x.detail, x.route_id, x.xid
    from ff.event x
    where x.partition_key = p_partition_key and x.generation = v_generation and x.xid > v_last
      and x.xid <= coalesce(v_cut, v_end)
    union all
    select l.event_id, l.execution_id, l.version, l.kind, l.occurred_at, l.attempt_index,
           l.lease_id, l.epoch, l.worker_instance_id, l.outcome, l.flow_id, l.namespace,
           l.instance_tag, l.actor, l.detail, l.route_id, l.xid
    from unnest(v_unfinished) u(xid)
    cross join lateral (
      select y.* from ff.event y
      where y.partition_key = p_partition_key and y.generation = v_generation and y.xid = u.xid
      offset 0) l
  ) e
  left join lateral (
    select s.lane, s.task from ff.route s where s.route_id = e.route_id offset 0) r on true
  where e.xid <> v_own and (v_is_old or pg_visible_in_snapshot(e.xid, v_snapshot))
    and (p_namespace is null or e.namespace = p_namespace)
    and (p_kinds is null or e.kind::text = any (p_kinds))
    and (p_lanes is null or r.lane = any (p_lanes))
    and (p_tasks is null or r.task like any (v_patterns))
    and (p_execution_ids is null or e.execution_id = any (p_execution_ids))
    and (p_instance_tags is null or e.instance_tag = any (p_instance_tags))
  order by e.event_id;

  -- Find the highest transaction delivered, including rows that filters hide. If there are no new
  -- events, the cursor stays.
  select e.event_id, e.xid, e.occurred_at, e.execution_id into v_last_event
  from ff.event e
  where e.partition_key = p_partition_key and e.generation = v_generation and e.xid > v_last
    and e.xid <= coalesce(v_cut, v_end)
    and e.xid <> v_own and (v_is_old or pg_visible_in_snapshot(e.xid, v_snapshot))
  order by e.xid desc, e.event_id desc
  limit 1;
  next_cursor := case
    when v_last_event.xid is not null then
      ff._format_cursor(p_partition_key, v_generation, v_last_event.xid,
                        case when not v_is_old then v_snapshot end, v_last_event.event_id,
                        v_last_event.occurred_at, ff._hash_id(v_last_event.execution_id),
                        v_cursor.trimmed)
    when exists (
        select from unnest(v_unfinished) u(xid)
        where u.xid <> v_own and (v_is_old or pg_visible_in_snapshot(u.xid, v_snapshot))) then
      ff._format_cursor(p_partition_key, v_generation, v_last,
                        case when not v_is_old then v_snapshot end, v_cursor.last_event_id,
                        v_cursor.last_event_at, v_cursor.last_event_of, v_cursor.trimmed)
    else p_cursor end;
  has_more := v_cut is not null and exists (
      select from ff.event e
      where e.partition_key = p_partition_key and e.generation = v_generation and e.xid > v_cut
        and e.xid < v_end
        and e.xid <> v_own and (v_is_old or pg_visible_in_snapshot(e.xid, v_snapshot)))
    or v_is_old and exists (
      select from ff.event e
      where e.partition_key = p_partition_key and e.generation > v_generation
        and e.generation <= v_cursor.current
        and (e.generation < v_cursor.current or pg_visible_in_snapshot(e.xid, v_snapshot)));

  -- Events trimmed during this call may be missing from the page: check the cursor again.
  if ff._read_trim_mark(p_partition_key) is distinct from v_cursor.trimmed then
    perform ff._parse_cursor(p_partition_key, p_cursor);
  end if;
  event_id := null; execution_id := null; version := null; kind := null; occurred_at := null;
  attempt_index := null; lease_id := null; epoch := null; worker_instance_id := null;
  outcome := null; flow_id := null; namespace := null; lane := null; task := null;
  instance_tag := null; actor := null; detail := null;
  return next;
end;
$$;
