-- Read the counts of events between two instants, by lane, task and kind, with their latencies.
--
-- If p_step is null, each count covers the whole time from p_since to p_until. If p_step is given,
-- the time is divided into parts of that length, beginning at p_since, and each part has its own
-- counts. A minute is counted as a whole if it begins at p_since or later, and before p_until.
--
-- If p_is_total is true, the counts of all lanes and tasks are added up, and the answer has no
-- latencies.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.read_minutes;
create function ff.read_minutes(
  p_partition_key smallint,
  p_namespace     text,
  p_since         timestamptz,
  p_until         timestamptz default null,
  p_step          interval default null,
  p_task          text default null,
  p_lane          text default null,
  p_is_total      boolean default false
)
returns table (
  starts_at   timestamptz,
  lane        text,
  task        text,
  kind        text,
  event_count bigint,
  buckets     smallint[],
  counts      bigint[]
)
language plpgsql
-- In a `stable` function all statements see one snapshot. Otherwise a sum that is extended
-- meanwhile could be counted twice.
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_mergejoin = off
-- Group rows by hash: sorting them by text takes several times as long.
set enable_sort = off
set work_mem = '64MB'
set jit = off
as $$
#variable_conflict use_column
declare
  v_lengths constant interval[] := array['6 hours', '1 hour', '10 minutes', '1 minute'];
  v_origin  constant timestamptz := '2000-01-01 00:00:00+00';
  v_now     constant timestamptz := ff.now();
  v_until   timestamptz := coalesce(p_until, v_now + interval '1 minute');
  v_since   timestamptz;
  v_summed  timestamptz;
  v_minutes smallint[];
  v_starts  timestamptz[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_partition(p_partition_key);
  if not isfinite(v_until) or v_until >= '10000-01-01 00:00:00+00' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'until', 'problem', 'must be an instant before the year 10000'));
  end if;
  if p_since is null or not isfinite(p_since) or v_until - p_since > interval '31 days' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'since', 'problem', 'must be at most 31 days before the end'));
  end if;
  if not ff._is_within(p_step, '1 minute', '31 days') or (v_until - p_since) / 2000 > p_step then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'step', 'problem', 'must be a minute or more, and give at most 2000 steps'));
  end if;
  if p_since >= v_until then
    return;
  end if;
  v_since := date_bin('1 minute', p_since + interval '59.999999 seconds', v_origin);
  v_until := date_bin('1 minute', v_until + interval '59.999999 seconds', v_origin);
  v_summed := coalesce((
    select m.summed_at from ff.minute_position m where m.partition_key = p_partition_key),
    '-infinity');
  -- Begin with two spans: the time that has sums, and the time that has none yet. Divide each span
  -- until it has a sum and is wanted as a whole, or until it is a minute.
  with recursive span as (
    select 0 as level, r.low as starts_at, r.high as ends_at, r.low, r.high, false as is_read
    from (values (v_since, least(v_until, v_summed)), (greatest(v_since, v_summed), v_until))
           r(low, high)
    union all
    select s.level + 1, c.starts_at, c.starts_at + l.length, s.low, s.high,
           c.starts_at >= s.low and (s.level = 3
             or c.starts_at < v_summed
               -- The last sum of each length is not complete yet: it ends at v_summed.
               and (c.starts_at + l.length <= s.high or s.high = v_summed)
               and (p_step is null or date_bin(p_step, c.starts_at, p_since) = date_bin(
                 p_step, least(c.starts_at + l.length, s.high) - interval '1 minute', p_since)))
    from span s
    cross join lateral (select v_lengths[s.level + 1] as length) l
    cross join lateral generate_series(
      date_bin(l.length, greatest(s.starts_at, s.low), v_origin),
      least(s.ends_at, s.high) - interval '1 minute', l.length) c(starts_at)
    where s.level < 4 and not s.is_read
  )
  select array_agg((extract(epoch from s.ends_at - s.starts_at) / 60)::smallint),
         array_agg(s.starts_at)
    into v_minutes, v_starts
  from span s
  where s.level > 0 and s.is_read;
  return query
  with part as materialized (
    select case when p_step is null then p_since
                else date_bin(p_step, m.starts_at, p_since) end as starts_at,
           case when p_is_total then '' else m.lane end as lane,
           case when p_is_total then '' else m.task end as task, m.kind::text as kind,
           m.event_count, case when p_is_total then '{}' else m.buckets end as buckets,
           case when p_is_total then '{}' else m.counts end as counts
    from unnest(v_minutes, v_starts) s(minutes, starts_at)
    cross join lateral (
      select x.starts_at, x.lane, x.task, x.kind, x.event_count, x.buckets, x.counts
      from ff.minute x
      where x.partition_key = p_partition_key and x.minutes = s.minutes
        and x.starts_at = s.starts_at
        and (p_namespace is null or x.namespace = p_namespace)
        and (p_task is null or x.task = p_task) and (p_lane is null or x.lane = p_lane)
      offset 0) m
  ),
  series as materialized (
    select row_number() over () as number, p.starts_at, p.lane, p.task, p.kind,
           sum(p.event_count)::bigint as event_count
    from part p
    group by p.starts_at, p.lane, p.task, p.kind
  ),
  latency as (
    select l.number, l.bucket, sum(l.events)::bigint as events
    from (
      -- In the select list, unnest takes half as long as in a lateral join.
      select y.number, unnest(p.buckets) as bucket, unnest(p.counts) as events
      from part p
      join series y on y.starts_at = p.starts_at and y.lane = p.lane and y.task = p.task
        and y.kind = p.kind
      where not p_is_total) l
    group by l.number, l.bucket
  ),
  sketch as (
    select l.number, array_agg(l.bucket order by l.bucket) as buckets,
           array_agg(l.events order by l.bucket) as counts
    from latency l
    group by l.number
  )
  select y.starts_at, y.lane, y.task, y.kind, y.event_count, coalesce(s.buckets, '{}'),
         coalesce(s.counts, '{}')
  from series y
  left join sketch s on s.number = y.number
  order by y.starts_at, y.lane collate "C", y.task collate "C", y.kind collate "C";
end;
$$;
