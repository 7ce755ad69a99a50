-- Open a cursor for reading events: from now on, or since an instant.
--
-- Without an instant the cursor stands after every event that is visible now. With an instant it
-- stands before the first event of that time or later, and the reader may get a few earlier events
-- too. An instant before the first event reads all events.
--
-- Moves:    nothing
-- Refuses:  WF203 read_only_server
-- Locks:    none
-- Replay:   a read
-- Rights:   app
drop function if exists ff.open_cursor;
create function ff.open_cursor(p_partition_key smallint, p_since timestamptz default null)
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
begin
  perform ff._check_primary();
  v_trimmed := ff._read_trim_mark(p_partition_key);
  v_current := ff._find_generation(p_partition_key);
  v_snapshot := pg_current_snapshot();
  v_own := coalesce(pg_current_xact_id_if_assigned(), '0'::xid8);
  if p_since is not null then
    -- This scans the index. Cursors are rarely opened, and the answer must be exact.
    select e.generation, e.xid into v_generation, v_first
    from ff.event e
    where e.partition_key = p_partition_key and e.occurred_at >= p_since
      and case when e.generation = v_current
            then e.xid <> v_own and pg_visible_in_snapshot(e.xid, v_snapshot)
            else e.generation < v_current end
    order by e.generation, e.xid
    limit 1;
  end if;
  -- The last event before the cursor: the highest of all, or the highest before the first wanted
  -- event.
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
