-- Open a cursor for reading new events, or for reading the events since the instant p_since.
--
-- If p_since is null, the cursor stands after every event that is visible now. Otherwise the cursor
-- stands before the first event whose time is p_since or later. The reader may then also get a few
-- events from before p_since, because the log is in the order of transactions. If p_since is before
-- all events, the reader gets all events.
--
-- If p_grace is null, the call reads the log from its start to find that first event. If p_grace is
-- given, the call starts at an event that is more than p_grace older than p_since. This is faster,
-- but the reader may miss the events of transactions that were open for longer than p_grace.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF203 read_only_server
-- Locks:    none; the first call after a move of the partition to another node of the cluster locks
--           the row of the partition in ff.event_generation, and waits for it without a limit
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.open_cursor;
create function ff.open_cursor(
  p_partition_key smallint,
  p_since         timestamptz default null,
  p_grace         interval default null
)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
  v_trimmed    text;
  v_current    integer;
  v_snapshot   pg_snapshot;
  v_own        xid8;
  v_generation integer;
  v_first      xid8;
  v_last       record;
  v_low        bigint;
  v_high       bigint;
  v_middle     bigint;
  v_at         timestamptz;
begin
  perform ff._check_primary();
  if not ff._is_within(p_grace, '0', '31 days') then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'grace', 'problem', 'must be 0 to 31 days'));
  end if;
  v_trimmed := ff._read_trim_mark(p_partition_key);
  v_current := ff._find_generation(p_partition_key);
  v_snapshot := pg_current_snapshot();
  v_own := coalesce(pg_current_xact_id_if_assigned(), '0'::xid8);
  if p_grace is not null and p_since > '0001-01-01 00:00:00+00' then
    select e.xid::text::bigint, e.occurred_at into v_low, v_at
    from ff.event e
    where e.partition_key = p_partition_key and e.generation = v_current
    order by e.xid, e.event_id
    limit 1;
    -- If an older generation may hold the first wanted event, that generation is read as a whole.
    if not coalesce(v_at < p_since - p_grace, false) then
      v_low := null;
    end if;
    v_high := pg_snapshot_xmax(v_snapshot)::text::bigint;
    while v_high - v_low > 1 loop
      v_middle := v_low + (v_high - v_low) / 2;
      select e.occurred_at into v_at
      from ff.event e
      where e.partition_key = p_partition_key and e.generation = v_current
        and e.xid >= v_middle::text::xid8
      order by e.xid, e.event_id
      limit 1;
      if found and v_at < p_since - p_grace then
        v_low := v_middle;
      else
        v_high := v_middle;
      end if;
    end loop;
  end if;
  if p_since is not null then
    -- This scans the index. Cursors are rarely opened, and the answer must be exact.
    select e.generation, e.xid into v_generation, v_first
    from ff.event e
    where e.partition_key = p_partition_key and e.occurred_at >= p_since
      and (e.generation, e.xid) >= (
        case when v_low is null then 0 else v_current end, coalesce(v_low, 0)::text::xid8)
      and case when e.generation = v_current
            then e.xid <> v_own and pg_visible_in_snapshot(e.xid, v_snapshot)
            else e.generation < v_current end
    order by e.generation, e.xid
    limit 1;
  end if;
  -- The last event is the event just before the cursor: the highest of all, or the highest before
  -- the first wanted event.
  select e.event_id, e.generation, e.xid, e.occurred_at, e.execution_id into v_last
  from ff.event e
  where e.partition_key = p_partition_key
    and (e.generation, e.xid) < (coalesce(v_generation, v_current),
                                 coalesce(v_first, pg_snapshot_xmax(v_snapshot)))
    and case when e.generation = v_current
          then e.xid <> v_own and pg_visible_in_snapshot(e.xid, v_snapshot)
          else true end
  order by e.generation desc, e.xid desc, e.event_id desc
  limit 1;
  return ff._format_cursor(
    p_partition_key,
    case when v_last.xid is not null then v_last.generation
         when v_first is not null then 0 else v_current end,
    v_last.xid,
    case when v_last.generation = v_current then v_snapshot end,
    v_last.event_id, v_last.occurred_at, ff._hash_id(v_last.execution_id), v_trimmed);
end;
$$;
