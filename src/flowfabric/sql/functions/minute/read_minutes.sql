-- Read the counts of events between two instants, by lane, task and kind, with their latencies.
--
-- Without p_step, the answer has one part. With p_step, it has parts of that length, and the first
-- part begins at p_since. A minute counts as a whole if it begins at p_since or later, and before
-- p_until.
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
  p_lane          text default null
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
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now   constant timestamptz := ff.now();
  v_until constant timestamptz := coalesce(p_until, v_now + interval '1 minute');
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_partition(p_partition_key);
  if not isfinite(v_until) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'until', 'problem', 'must be an instant'));
  end if;
  if p_since is null or not isfinite(p_since) or v_until - p_since > interval '31 days' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'since', 'problem', 'must be at most 31 days before the end'));
  end if;
  if not ff._is_within(p_step, '1 minute', '31 days') or (v_until - p_since) / 2000 > p_step then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'step', 'problem', 'must be a minute or more, and give at most 2000 steps'));
  end if;
  return query
  with part as materialized (
    select case when p_step is null then p_since
                else date_bin(p_step, m.starts_at, p_since) end as starts_at,
           m.lane, m.task, m.kind::text as kind, m.event_count, m.buckets, m.counts
    from ff.minute m
    where m.partition_key = p_partition_key and m.starts_at >= p_since and m.starts_at < v_until
      and (p_namespace is null or m.namespace = p_namespace)
      and (p_task is null or m.task = p_task) and (p_lane is null or m.lane = p_lane)
  ),
  latency as (
    select p.starts_at, p.lane, p.task, p.kind, u.bucket, sum(u.number)::bigint as number
    from part p
    cross join lateral unnest(p.buckets, p.counts) u(bucket, number)
    group by p.starts_at, p.lane, p.task, p.kind, u.bucket
  ),
  sketch as (
    select l.starts_at, l.lane, l.task, l.kind, array_agg(l.bucket order by l.bucket) as buckets,
           array_agg(l.number order by l.bucket) as counts
    from latency l
    group by l.starts_at, l.lane, l.task, l.kind
  ),
  total as (
    select p.starts_at, p.lane, p.task, p.kind, sum(p.event_count)::bigint as event_count
    from part p
    group by p.starts_at, p.lane, p.task, p.kind
  )
  select t.starts_at, t.lane, t.task, t.kind, t.event_count, coalesce(s.buckets, '{}'),
         coalesce(s.counts, '{}')
  from total t
  left join sketch s on s.starts_at = t.starts_at and s.lane = t.lane and s.task = t.task
    and s.kind = t.kind
  order by t.starts_at, t.lane collate "C", t.task collate "C", t.kind collate "C";
end;
$$;
