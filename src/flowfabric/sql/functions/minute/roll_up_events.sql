-- Count new events by minute, lane, task and kind. Add the minutes to sums over 10 minutes, an
-- hour and 6 hours. Also delete counts that are older than 30 days.
--
-- These events are counted: submits, skips, replays, and the events that begin or end a run.
-- ff.minute_position keeps the position up to which a partition is counted. Each event is counted
-- once, even after a crash: the counts and this position change in one transaction, and only one
-- call at a time counts a partition. A failover or a trim may remove events before they are
-- counted. In that case counting begins again with the next event, and the column lost_at of
-- ff.minute_position is set to the present time.
--
-- Events that begin or end a run are also timed. For an event that begins a run (claimed, resumed,
-- reclaimed), the call records how long the execution had waited since its previous event. For an
-- event that ends a run, it records how long the run took. For a flow member, the time before its
-- first run is not recorded, because a member also waits for other members.
--
-- If a call counts many events, it times only a random sample: 500 to 1 000 of them, and at least
-- ten of each task and kind. The sample stands for all events of its task and kind.
--
-- A minute is added to the sums when its span of 10 minutes is over. An event that is counted
-- later is added both to its minute and to the sums.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF203 read_only_server
-- Locks:    the position of the partition; a call that finds it locked does nothing
-- Repeat:   a second call counts only new events
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
  v_origin constant timestamptz := '2000-01-01 00:00:00+00';
  v_now    constant timestamptz := ff.now();
  v_cursor text;
  v_summed timestamptz;
  v_last   timestamptz;
  v_close  timestamptz;
  v_page   record;
begin
  perform ff._check_pass(p_limit);
  if not exists (select from ff.minute_position m where m.partition_key = p_partition_key) then
    v_cursor := ff.open_cursor(p_partition_key, '-infinity');
    insert into ff.minute_position (partition_key, cursor_text) values (p_partition_key, v_cursor)
    on conflict do nothing;
  end if;
  select m.cursor_text, m.summed_at into v_cursor, v_summed
  from ff.minute_position m
  where m.partition_key = p_partition_key
  for no key update skip locked;
  handled := 0;
  if not found then
    return next;
    return;
  end if;
  v_page := ff._find_page(p_partition_key, v_cursor, p_limit);
  if v_page.is_lost then
    v_cursor := ff.open_cursor(p_partition_key);
    update ff.minute_position m set cursor_text = v_cursor, lost_at = v_now
    where m.partition_key = p_partition_key;
    return next;
    return;
  end if;
  -- Add at most an hour to the sums, so that a call stays short after a long pause. Sums never
  -- shrink, even if the clock was set back.
  v_last := date_bin('10 minutes', v_now, v_origin);
  v_close := greatest(v_summed, least(v_last, (
    select date_bin('10 minutes', m.starts_at, v_origin) + interval '1 hour'
    from ff.minute m
    where m.partition_key = p_partition_key and m.minutes = 1 and m.starts_at >= v_summed
    order by m.starts_at
    limit 1)));
  update ff.minute_position m set cursor_text = v_page.next_cursor, summed_at = v_close
  where m.partition_key = p_partition_key
    and (m.cursor_text <> v_page.next_cursor or m.summed_at <> v_close);
  if found then
    handled := ff._count_events(
      p_partition_key, v_page.generation, v_page.last_xid, v_page.cut, v_page.unfinished,
      v_page.own, v_page.snapshot, v_summed, v_close,
      -- Time 500 to 1 000 events of a large page.
      (1 << floor(log(2, greatest(v_page.size / 500.0, 1)))::integer) - 1);
  end if;
  -- Events trimmed during this call may not have been counted: check the cursor again.
  if ff._read_trim_mark(p_partition_key) is distinct from v_page.trimmed then
    perform ff._parse_cursor(p_partition_key, v_cursor);
  end if;
  -- Delete the oldest hour of each length, so that a call stays short after a long pause.
  delete from ff.minute m
  using (
    select p_partition_key as pk, l.minutes, o.starts_at, o.starts_at + interval '1 hour' as ends_at
    from unnest(array[1, 10, 60, 360]::smallint[]) l(minutes)
    cross join lateral (
      select x.starts_at
      from ff.minute x
      where x.partition_key = p_partition_key and x.minutes = l.minutes
        and x.starts_at < v_now - interval '30 days'
      order by x.starts_at
      limit 1) o
    offset 0) d
  where m.partition_key = d.pk and m.minutes = d.minutes and m.starts_at >= d.starts_at
    and m.starts_at < d.ends_at and m.starts_at < v_now - interval '30 days';
  due_in := case when v_page.has_more or v_close < v_last then interval '0' end;
  return next;
end;
$$;
