-- Count new events by minute, lane, task and kind. Also delete counts that are older than 30 days.
--
-- These events are counted: submits, skips, replays, and the events that begin or end a run. Each
-- is counted once, even after a crash: counts and position change in one transaction, and only one
-- call at a time counts a partition. A failover or a trim may remove events before they are
-- counted. In that case counting begins again with the next event, and the column lost_at of
-- ff.minute_position is set to the present time.
--
-- For an event that begins a run (claimed, resumed, reclaimed), the call also records how long the
-- execution had waited since its previous event. For an event that ends a run, it records how long
-- the run took. The first wait of a flow member is not recorded, because a member also waits for
-- other members.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF203 read_only_server
-- Locks:    the position of the partition; a pass that finds it locked does nothing
-- Repeat:   a second call counts what is new
-- Rights:   app
drop function if exists ff.roll_up_events;
create function ff.roll_up_events(p_partition_key smallint, p_limit integer default 5000)
returns table (handled integer, due_in interval)
language plpgsql
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
  v_begins constant text[] := array['claimed', 'resumed', 'reclaimed'];
  v_ends   constant text[] := array[
    'completed', 'failed', 'cancelled', 'expired', 'retry_scheduled', 'lease_expired'];
  v_kinds  constant text[] := v_begins || v_ends || array['submitted', 'skipped', 'replayed'];
  v_now    constant timestamptz := ff.now();
  v_cursor text;
  v_read   record;
  v_page   record;
begin
  perform ff._check_pass(p_limit);
  if not exists (select from ff.minute_position m where m.partition_key = p_partition_key) then
    v_cursor := ff.open_cursor(p_partition_key, '-infinity');
    insert into ff.minute_position (partition_key, cursor_text) values (p_partition_key, v_cursor)
    on conflict do nothing;
  end if;
  select m.cursor_text into v_cursor
  from ff.minute_position m
  where m.partition_key = p_partition_key
  for no key update skip locked;
  handled := 0;
  if not found then
    return next;
    return;
  end if;
  v_read := ff._read_cursor(p_partition_key, v_cursor, p_refuses => false);
  if v_read.is_lost then
    v_cursor := ff.open_cursor(p_partition_key);
    update ff.minute_position m set cursor_text = v_cursor, lost_at = v_now
    where m.partition_key = p_partition_key;
    return next;
    return;
  end if;
  select array_agg(e.event_id) as event_ids, array_agg(e.execution_id) as ids,
         array_agg(e.kind) as kinds, array_agg(e.occurred_at) as ats,
         array_agg(e.namespace) as namespaces, array_agg(e.lane) as lanes,
         array_agg(e.task) as tasks, array_agg(e.flow_id) as flow_ids,
         max(e.next_cursor) as next_cursor, bool_or(e.has_more) as has_more
    into v_page
  from ff._read_events(p_partition_key, null, v_cursor, p_limit, v_kinds) e;
  if v_page.next_cursor is distinct from v_cursor then
    update ff.minute_position m set cursor_text = v_page.next_cursor
    where m.partition_key = p_partition_key;
  end if;
  handled := coalesce(cardinality(array_remove(v_page.event_ids, null)), 0);
  if handled > 0 then
    with seen as materialized (
      select u.id, u.event_id, u.kind, u.at, u.namespace, coalesce(u.lane, '') as lane,
             coalesce(u.task, '') as task, u.flow_id
      from unnest(v_page.event_ids, v_page.ids, v_page.kinds, v_page.ats, v_page.namespaces,
                  v_page.lanes, v_page.tasks, v_page.flow_ids)
             u(event_id, id, kind, at, namespace, lane, task, flow_id)
      where u.event_id is not null
    ),
    timed as materialized (
      select s.kind, date_trunc('minute', s.at) as starts_at, s.namespace, s.lane, s.task,
             case when b.at is not null then least(greatest(ceil(
               ln(greatest(extract(epoch from s.at - b.at)::double precision * 1000, 1))
               / ln(1.1::double precision)), 0), 300)::smallint end as bucket
      from seen s
      left join lateral (
        select v.occurred_at as at, v.kind
        from ff.event v
        where v.partition_key = p_partition_key and v.execution_id = s.id
          and v.event_id < s.event_id and s.kind = any (v_begins || v_ends)
        order by v.generation desc, v.event_id desc
        limit 1) b on case
          when s.kind = any (v_ends) then b.kind::text = any (v_begins)
          else b.kind::text in ('submitted', 'released', 'lease_expired', 'lease_revoked', 'woken',
                                'replayed')
            and (s.flow_id is null or b.kind <> 'submitted') end
    ),
    counted as (
      select t.starts_at, t.namespace, t.lane, t.task, t.kind, t.bucket, count(*) as number
      from timed t
      group by t.starts_at, t.namespace, t.lane, t.task, t.kind, t.bucket
    ),
    -- Read what earlier calls have counted in the same minutes.
    before as materialized (
      select m.starts_at, m.namespace, m.lane, m.task, m.kind::text as kind, m.event_count,
             m.buckets, m.counts
      from (select distinct c.starts_at, c.namespace, c.lane, c.task, c.kind from counted c) k
      cross join lateral (
        select x.starts_at, x.namespace, x.lane, x.task, x.kind, x.event_count, x.buckets,
               x.counts
        from ff.minute x
        where x.partition_key = p_partition_key and x.starts_at = k.starts_at
          and x.namespace = k.namespace and x.lane = k.lane and x.task = k.task
          and x.kind = k.kind::ff.event_kind
        offset 0) m
    ),
    every as (
      select c.starts_at, c.namespace, c.lane, c.task, c.kind, c.bucket, c.number, c.number as events
      from counted c
      union all
      select b.starts_at, b.namespace, b.lane, b.task, b.kind, u.bucket, u.number, 0
      from before b
      cross join lateral unnest(b.buckets, b.counts) u(bucket, number)
      union all
      select b.starts_at, b.namespace, b.lane, b.task, b.kind, null, 0, b.event_count
      from before b
    ),
    summed as (
      select e.starts_at, e.namespace, e.lane, e.task, e.kind, e.bucket,
             sum(e.number)::integer as number, sum(e.events)::integer as events
      from every e
      group by e.starts_at, e.namespace, e.lane, e.task, e.kind, e.bucket
    )
    insert into ff.minute (
      partition_key, starts_at, namespace, lane, task, kind, event_count, buckets, counts)
    select p_partition_key, s.starts_at, s.namespace, s.lane, s.task, s.kind::ff.event_kind,
           sum(s.events)::integer,
           coalesce(array_agg(s.bucket order by s.bucket) filter (where s.bucket is not null), '{}'),
           coalesce(array_agg(s.number order by s.bucket) filter (where s.bucket is not null), '{}')
    from summed s
    group by s.starts_at, s.namespace, s.lane, s.task, s.kind
    on conflict (partition_key, starts_at, namespace, lane, task, kind) do update set
      event_count = excluded.event_count, buckets = excluded.buckets, counts = excluded.counts;
  end if;
  delete from ff.minute m
  where m.partition_key = p_partition_key and m.starts_at < v_now - interval '30 days';
  due_in := case when v_page.has_more then interval '0' end;
  return next;
end;
$$;
