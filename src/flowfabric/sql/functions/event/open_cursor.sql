-- Open a cursor for reading events: future ones, those since an instant, or all.
--
-- Without an instant the cursor stands after every event visible now. With one it stands before the
-- first event of that instant or later, and may repeat a few events that were read before.
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
  v_trimmed  text;
  v_snapshot pg_snapshot;
  v_own      xid8;
  v_last     record;
begin
  perform ff._check_primary();
  select m.value into v_trimmed
  from ff.meta m where m.name = 'trimmed_xid:' || p_partition_key;
  v_snapshot := pg_current_snapshot();
  v_own := coalesce(pg_current_xact_id_if_assigned(), '0'::xid8);
  if p_since is null then
    select e.event_id, e.xid, e.occurred_at, e.execution_id into v_last
    from ff.event e
    where e.partition_key = p_partition_key
      and e.xid <> v_own and pg_visible_in_snapshot(e.xid, v_snapshot)
    order by e.xid desc, e.event_id desc
    limit 1;
  else
    -- The highest event before the first one wanted. Scans the index: rare, and exact.
    select e.event_id, e.xid, e.occurred_at, e.execution_id into v_last
    from ff.event e
    where e.partition_key = p_partition_key
      and e.xid < coalesce(
        (select f.xid from ff.event f
         where f.partition_key = p_partition_key and f.occurred_at >= p_since
           and f.xid <> v_own and pg_visible_in_snapshot(f.xid, v_snapshot)
         order by f.xid limit 1),
        pg_snapshot_xmax(v_snapshot))
      and e.xid <> v_own and pg_visible_in_snapshot(e.xid, v_snapshot)
    order by e.xid desc, e.event_id desc
    limit 1;
  end if;
  return ff._format_cursor(p_partition_key, v_last.xid, v_snapshot, v_last.event_id,
                           v_last.occurred_at, ff._hash_id(v_last.execution_id), v_trimmed);
end;
$$;
