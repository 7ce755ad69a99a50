-- Find the next page of events after a cursor, without reading its events. Also return the cursor
-- after the page.
--
-- The page consists of whole transactions. It has the transactions whose ids are above last_xid and
-- at most `cut`. It also has the transactions that were unfinished when the cursor was made and
-- have committed since.
--
-- Transaction ids do not follow the order of commits. So a page can have an event of an execution
-- while an earlier event of this execution comes in a later page. For counting events this does not
-- matter.
drop function if exists ff._find_page;
create function ff._find_page(
  p_partition_key smallint,
  p_cursor        text,
  p_limit         integer,
  out is_lost     boolean,
  out generation  integer,
  out last_xid    xid8,
  out cut         xid8,
  out unfinished  xid8[],
  out own         xid8,
  -- null in an older generation, which is complete
  out snapshot    pg_snapshot,
  out trimmed     text,
  out next_cursor text,
  out has_more    boolean,
  -- about how many events the page has
  out size        integer
)
returns record
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_variable
declare
  v_cursor     record;
  v_end        xid8;
  v_last_event record;
begin
  v_cursor := ff._parse_cursor(p_partition_key, p_cursor, p_refuses => false);
  is_lost := v_cursor.is_lost;
  if is_lost then
    return;
  end if;
  snapshot := pg_current_snapshot();
  generation := v_cursor.generation;
  last_xid := v_cursor.last_xid;
  unfinished := v_cursor.unfinished;
  trimmed := v_cursor.trimmed;
  own := coalesce(pg_current_xact_id_if_assigned(), '0');
  -- If the generation of the cursor has no events left, go on with the next one.
  if generation < v_cursor.current and not exists (
      select from ff.event e
      where e.partition_key = p_partition_key and e.generation = generation and e.xid > last_xid)
    and not exists (
      select from unnest(unfinished) u(xid)
      cross join lateral (
        select from ff.event x
        where x.partition_key = p_partition_key and x.generation = generation and x.xid = u.xid
        limit 1) e)
  then
    generation := coalesce((
      select min(e.generation) from ff.event e
      where e.partition_key = p_partition_key and e.generation > v_cursor.generation
        and e.generation <= v_cursor.current), v_cursor.current);
    last_xid := '0';
    unfinished := '{}';
  end if;
  if generation < v_cursor.current then
    snapshot := null;
    own := '0';
  end if;
  v_end := coalesce(pg_snapshot_xmax(snapshot), '18446744073709551615');
  select e.xid into cut
  from ff.event e
  where e.partition_key = p_partition_key and e.generation = generation and e.xid > last_xid
    and e.xid < v_end and e.xid <> own
    and (snapshot is null or pg_visible_in_snapshot(e.xid, snapshot))
  order by e.xid, e.event_id
  offset p_limit - 1 limit 1;
  has_more := cut is not null and exists (
      select from ff.event e
      where e.partition_key = p_partition_key and e.generation = generation and e.xid > cut
        and e.xid < v_end and e.xid <> own
        and (snapshot is null or pg_visible_in_snapshot(e.xid, snapshot)))
    or snapshot is null;
  size := case when cut is not null then p_limit else (
    select count(*) from ff.event e
    where e.partition_key = p_partition_key and e.generation = generation and e.xid > last_xid
      and e.xid < v_end) end;
  cut := coalesce(cut, v_end);
  -- The last event is the highest event of the page. Without a new event, it stays the same.
  select e.event_id, e.xid, e.occurred_at, e.execution_id into v_last_event
  from ff.event e
  where e.partition_key = p_partition_key and e.generation = generation and e.xid > last_xid
    and e.xid <= cut and e.xid < v_end and e.xid <> own
    and (snapshot is null or pg_visible_in_snapshot(e.xid, snapshot))
  order by e.xid desc, e.event_id desc
  limit 1;
  next_cursor := case
    when v_last_event.xid is not null then
      ff._format_cursor(p_partition_key, generation, v_last_event.xid, snapshot, v_last_event.event_id,
                        v_last_event.occurred_at, ff._hash_id(v_last_event.execution_id), trimmed)
    when exists (
        select from unnest(unfinished) u(xid)
        where u.xid <> own and (snapshot is null or pg_visible_in_snapshot(u.xid, snapshot))) then
      ff._format_cursor(p_partition_key, generation, last_xid, snapshot, v_cursor.last_event_id,
                        v_cursor.last_event_at, v_cursor.last_event_of, trimmed)
    else p_cursor end;
end;
$$;
