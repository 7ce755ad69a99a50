-- Count the events of one page (ff._find_page) into minutes, and add the minutes from p_summed to
-- p_close to the sums. Return the number of events counted. ff.roll_up_events says which events
-- are counted, and how events are timed.
--
-- p_mask says what part of the events is timed: 0 means all, 1 a half, 3 a quarter, and so on. A
-- hash of the event id chooses the events, so that a pattern in their order does not matter. If the
-- hash chooses fewer than ten events of a group, all events of the group are timed. A group is the
-- events of one minute, route and kind.
drop function if exists ff._count_events;
create function ff._count_events(
  p_partition_key smallint,
  p_generation    integer,
  p_last_xid      xid8,
  p_cut           xid8,
  p_unfinished    xid8[],
  p_own           xid8,
  p_snapshot      pg_snapshot,
  p_summed        timestamptz,
  p_close         timestamptz,
  p_mask          integer
)
returns integer
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_mergejoin = off
-- Group rows by hash: sorting them by text takes several times as long.
set enable_sort = off
set work_mem = '32MB'
set jit = off
as $$
#variable_conflict use_column
declare
  v_begins constant text[] := array['claimed', 'resumed', 'reclaimed'];
  v_timed  constant ff.event_kind[] := v_begins || array[
    'completed', 'failed', 'cancelled', 'expired', 'retry_scheduled', 'lease_expired'];
  v_kinds  constant ff.event_kind[] := v_timed || array[
    'submitted', 'skipped', 'replayed']::ff.event_kind[];
  v_origin constant timestamptz := '2000-01-01 00:00:00+00';
  v_page   record;
begin
  -- Count the events by group. Then choose some events of each group to be timed. If the hash
  -- chooses fewer than ten events of a group, all events of that group are timed.
  with page as materialized (
    select e.event_id, e.execution_id, e.occurred_at, e.kind, e.namespace, e.route_id,
           e.flow_id is not null as is_member,
           date_bin('1 minute', e.occurred_at, v_origin) as starts_at,
           hashint8(e.event_id) & p_mask = 0 and e.kind = any (v_timed) as is_drawn
    from (
      select x.event_id, x.execution_id, x.occurred_at, x.kind, x.namespace,
             coalesce(x.route_id, -1) as route_id, x.flow_id, x.xid
      from ff.event x
      where x.partition_key = p_partition_key and x.generation = p_generation
        and x.xid > p_last_xid and x.xid <= p_cut
      union all
      select l.event_id, l.execution_id, l.occurred_at, l.kind, l.namespace,
             coalesce(l.route_id, -1), l.flow_id, l.xid
      from unnest(p_unfinished) u(xid)
      cross join lateral (
        select y.event_id, y.execution_id, y.occurred_at, y.kind, y.namespace, y.route_id,
               y.flow_id, y.xid
        from ff.event y
        where y.partition_key = p_partition_key and y.generation = p_generation
          and y.xid = u.xid
        offset 0) l
    ) e
    where e.xid <> p_own and (p_snapshot is null or pg_visible_in_snapshot(e.xid, p_snapshot))
      and e.kind = any (v_kinds)
  ),
  grouped as materialized (
    select row_number() over () as number, g.starts_at, g.namespace, g.route_id, r.lane, r.task,
           g.kind, g.events, g.drawn < least(g.events, 10) and g.kind = any (v_timed) as is_thin
    from (
      select p.starts_at, p.namespace, p.route_id, p.kind, count(*)::integer as events,
             count(*) filter (where p.is_drawn) as drawn
      from page p
      group by p.starts_at, p.namespace, p.route_id, p.kind) g
    left join lateral (
      select x.lane, x.task from ff.route x where x.route_id = g.route_id offset 0) r on true
  ),
  -- The weights of a group add up to the number of its events.
  sampled as materialized (
    select d.number, d.kind, d.event_id, d.execution_id as id, d.occurred_at as at, d.is_member,
           (d.events::bigint * d.nth / d.drawn - d.events::bigint * (d.nth - 1) / d.drawn)::integer
             as weight
    from (
      select c.number, c.kind, c.events, c.event_id, c.execution_id, c.occurred_at, c.is_member,
             row_number() over (partition by c.number) as nth,
             count(*) over (partition by c.number) as drawn
      from (
        select g.number, g.kind::text as kind, g.events, p.event_id, p.execution_id, p.occurred_at,
               p.is_member
        from (select x.* from page x where x.is_drawn) p
        join grouped g
          on g.starts_at = p.starts_at and g.namespace = p.namespace and g.route_id = p.route_id
          and g.kind = p.kind
        where not g.is_thin
        union all
        select g.number, g.kind::text, g.events, p.event_id, p.execution_id, p.occurred_at,
               p.is_member
        from (select x.* from grouped x where x.is_thin) g
        join page p
          on g.starts_at = p.starts_at and g.namespace = p.namespace and g.route_id = p.route_id
          and g.kind = p.kind) c) d
  )
  select g.*, s.* into v_page
  from (
    select array_agg(y.starts_at order by y.number) as starts,
           array_agg(y.namespace order by y.number) as namespaces,
           array_agg(coalesce(y.lane, '') order by y.number) as lanes,
           array_agg(coalesce(y.task, '') order by y.number) as tasks,
           array_agg(y.kind order by y.number) as kinds,
           array_agg(y.events order by y.number) as events
    from grouped y) g
  cross join (
    select array_agg(y.number) as numbers, array_agg(y.kind) as kinds_of,
           array_agg(y.event_id) as event_ids, array_agg(y.id) as ids, array_agg(y.at) as ats,
           array_agg(y.is_member) as members, array_agg(y.weight) as weights
    from sampled y) s;

  with sample as materialized (
    select u.number, u.weight,
           least(greatest(ceil(
             ln(greatest(extract(epoch from u.at - b.at)::double precision * 1000, 1))
             / ln(1.1::double precision)), 0), 300)::smallint as bucket
    from unnest(v_page.numbers, v_page.kinds_of, v_page.event_ids, v_page.ids, v_page.ats,
                v_page.members, v_page.weights)
           u(number, kind, event_id, id, at, is_member, weight)
    cross join lateral (
      select v.occurred_at as at, v.kind::text as kind
      from ff.event v
      where v.partition_key = p_partition_key and v.execution_id = u.id
        and v.event_id < u.event_id
      order by v.generation desc, v.event_id desc
      limit 1) b
    where case
      when u.kind <> all (v_begins) then b.kind = any (v_begins)
      else b.kind in ('submitted', 'released', 'lease_expired', 'lease_revoked', 'woken', 'replayed')
        and not (u.is_member and b.kind = 'submitted') end
  ),
  fresh as (
    select s.number, s.bucket, sum(s.weight) as events, 0 as event_count
    from sample s
    group by s.number, s.bucket
    union all
    select u.number, null, 0, u.events
    from unnest(v_page.events) with ordinality u(events, number)
  ),
  -- New events go to their minute. If the minute is part of the sums, they go to the sums, too.
  added as materialized (
    select m.minutes,
           date_bin(m.minutes * interval '1 minute', v_page.starts[f.number], v_origin) as starts_at,
           v_page.namespaces[f.number] as namespace, v_page.lanes[f.number] as lane,
           v_page.tasks[f.number] as task, v_page.kinds[f.number] as kind, f.bucket, f.events,
           f.event_count
    from fresh f
    cross join lateral unnest(
      case when v_page.starts[f.number] < p_close then array[1, 10, 60, 360] else array[1]
      end::smallint[]) m(minutes)
    union all
    -- Minutes that were counted before become part of the sums.
    select m.minutes, date_bin(m.minutes * interval '1 minute', x.starts_at, v_origin),
           x.namespace, x.lane, x.task, x.kind, b.bucket, b.events, b.event_count
    from ff.minute x
    cross join lateral (
      select u.bucket, u.number as events, 0 as event_count
      from unnest(x.buckets, x.counts) u(bucket, number)
      union all
      select null, 0, x.event_count) b
    cross join lateral unnest(array[10, 60, 360]::smallint[]) m(minutes)
    where x.partition_key = p_partition_key and x.minutes = 1
      and x.starts_at >= p_summed and x.starts_at < p_close
  ),
  before as (
    select x.minutes, x.starts_at, x.namespace, x.lane, x.task, x.kind, x.event_count, x.buckets,
           x.counts
    from (select distinct a.minutes, a.starts_at, a.namespace, a.lane, a.task, a.kind
          from added a) k
    cross join lateral (
      select y.minutes, y.starts_at, y.namespace, y.lane, y.task, y.kind, y.event_count, y.buckets,
             y.counts
      from ff.minute y
      where y.partition_key = p_partition_key and y.minutes = k.minutes
        and y.starts_at = k.starts_at and y.namespace = k.namespace and y.lane = k.lane
        and y.task = k.task and y.kind = k.kind
      offset 0) x
  ),
  every as (
    select a.minutes, a.starts_at, a.namespace, a.lane, a.task, a.kind, a.bucket, a.events,
           a.event_count
    from added a
    union all
    select b.minutes, b.starts_at, b.namespace, b.lane, b.task, b.kind, s.bucket, s.events,
           s.event_count
    from before b
    cross join lateral (
      select u.bucket, u.number as events, 0 as event_count
      from unnest(b.buckets, b.counts) u(bucket, number)
      union all
      select null, 0, b.event_count) s
  ),
  summed as (
    select e.minutes, e.starts_at, e.namespace, e.lane, e.task, e.kind, e.bucket,
           least(sum(e.events), 2147483647)::integer as events,
           sum(e.event_count)::bigint as event_count
    from every e
    group by e.minutes, e.starts_at, e.namespace, e.lane, e.task, e.kind, e.bucket
  )
  insert into ff.minute (
    partition_key, minutes, starts_at, namespace, lane, task, kind, event_count, buckets, counts)
  select p_partition_key, s.minutes, s.starts_at, s.namespace, s.lane, s.task, s.kind,
         sum(s.event_count),
         coalesce(array_agg(s.bucket order by s.bucket) filter (where s.bucket is not null), '{}'),
         coalesce(array_agg(s.events order by s.bucket) filter (where s.bucket is not null), '{}')
  from summed s
  group by s.minutes, s.starts_at, s.namespace, s.lane, s.task, s.kind
  on conflict (partition_key, minutes, starts_at, namespace, lane, task, kind) do update set
    event_count = excluded.event_count, buckets = excluded.buckets, counts = excluded.counts;
  return coalesce((select sum(u.number) from unnest(v_page.events) u(number)), 0);
end;
$$;
