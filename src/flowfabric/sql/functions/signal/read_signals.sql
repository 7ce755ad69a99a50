-- Read the next signals of a partition after a cursor, in the order of their transactions, and
-- return the next cursor. A signal can be read as soon as its transaction has committed. No signal
-- is skipped.
--
-- A cursor names a generation of the partition, and a snapshot in that generation. The snapshot
-- says which transactions the reader has already read. The cursor null reads from the beginning.
-- The cursor `now` reads nothing, and returns the cursor of this moment.
--
-- A page has signals of one generation only. Older generations are complete, so all their rows are
-- visible. When a generation is read to its end, the next page continues with the next generation.
--
-- A page never splits a transaction, so a page can have more than p_limit signals. The last row of
-- a page has no signal, only the next cursor. Signals are trimmed with their execution. A reader
-- does not learn of trimmed signals.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF203 read_only_server
-- Locks:    none; the first call after a move of the partition to another node of the cluster locks
--           the row of the partition in ff.event_generation, and waits for it without a limit
-- Repeat:   the same cursor returns the same signals again, and newer ones
-- Rights:   app
drop function if exists ff.read_signals;
create function ff.read_signals(
  p_partition_key smallint,
  p_namespace     text,
  p_cursor        text default null,
  p_limit         integer default 500
)
returns table (
  signal_id       uuid,
  execution_id    uuid,
  name            text,
  waitpoint_id    uuid,
  category        text,
  source_type     text,
  source_identity text,
  accepted_at     timestamptz,
  effect          text,
  namespace       text,
  instance_tag    text,
  next_cursor     text
)
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
  v_now        pg_snapshot;
  v_own        xid8;
  v_seen       pg_snapshot;
  v_end        xid8;
  v_cut        xid8;
  v_max        bigint;
  v_open       bigint[];
  v_current    integer;
  v_generation integer;
  v_is_old     boolean := false;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  perform ff._check_primary();
  if p_cursor <> 'now' and (p_cursor !~ '^(0|[1-9][0-9]{0,8})[.]'
                            or not ff._is_snapshot(split_part(p_cursor, '.', 2))
                            or split_part(p_cursor, '.', 3) <> '') then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cursor', 'problem', 'must be a cursor of read_signals, now, or nothing'));
  end if;
  -- Read the generation before the snapshot. Signals that the snapshot does not show yet are in
  -- this generation or in a later one.
  v_current := ff._find_generation(p_partition_key);
  v_now := pg_current_snapshot();
  v_own := coalesce(pg_current_xact_id_if_assigned(), '0');
  if p_cursor = 'now' then
    v_generation := v_current;
    v_seen := '3:3:';
    v_cut := (pg_snapshot_xmax(v_now)::text::bigint - 1)::text::xid8;
  else
    v_generation := coalesce(split_part(p_cursor, '.', 1)::integer, 0);
    v_seen := coalesce(split_part(p_cursor, '.', 2), '3:3:')::pg_snapshot;
    if v_generation > v_current then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'cursor', 'problem', 'is of a later generation than this database has'));
    end if;
    if v_generation < v_current and not exists (
         select from ff.signal g
         where g.partition_key = p_partition_key and g.generation = v_generation
           and g.xid >= pg_snapshot_xmin(v_seen) and not pg_visible_in_snapshot(g.xid, v_seen)) then
      v_generation := coalesce(
        (select g.generation from ff.signal g
         where g.partition_key = p_partition_key and g.generation > v_generation
           and g.generation < v_current
         order by g.generation
         limit 1), v_current);
      v_seen := '3:3:';
    end if;
    v_is_old := v_generation < v_current;
    v_end := case when v_is_old then '18446744073709551615' else pg_snapshot_xmax(v_now) end;
    select max(p.xid::text::bigint)::text::xid8 into v_cut
    from (
      select g.xid from ff.signal g
      where g.partition_key = p_partition_key and g.generation = v_generation
        and g.xid >= pg_snapshot_xmin(v_seen) and g.xid < v_end
        and not pg_visible_in_snapshot(g.xid, v_seen)
        and (v_is_old or pg_visible_in_snapshot(g.xid, v_now) and g.xid <> v_own)
      order by g.xid, g.signal_id
      limit p_limit) p;
    return query
    select g.signal_id, g.execution_id, g.name, g.waitpoint_id, g.category, g.source_type,
           g.source_identity, g.accepted_at, g.effect, e.namespace, e.instance_tag, null::text
    from ff.signal g
    cross join lateral (
      select x.namespace, x.instance_tag from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = g.execution_id
      offset 0) e
    where g.partition_key = p_partition_key and g.generation = v_generation
      and g.xid >= pg_snapshot_xmin(v_seen) and g.xid <= v_cut
      and not pg_visible_in_snapshot(g.xid, v_seen)
      and (v_is_old or pg_visible_in_snapshot(g.xid, v_now) and g.xid <> v_own)
      and (p_namespace is null or e.namespace = p_namespace)
    order by g.xid, g.signal_id;
  end if;
  next_cursor := coalesce(p_cursor, '0.3:3:');
  if v_cut is not null then
    v_max := greatest(pg_snapshot_xmax(v_seen)::text::bigint, v_cut::text::bigint + 1);
    -- List the transactions that a later page must still read: transactions that are unfinished
    -- now, and transactions that the old cursor listed and this page did not reach. An old
    -- generation has no unfinished transactions.
    v_open := array(
      select distinct o.xid
      from (
        select r.xid::text::bigint as xid from pg_snapshot_xip(v_now) r(xid)
        where not v_is_old
        union all
        select r.xid::text::bigint from pg_snapshot_xip(v_seen) r(xid) where r.xid > v_cut
        union all
        select v_own::text::bigint where v_own <> '0' and not v_is_old) o
      where o.xid < v_max
      order by o.xid);
    next_cursor := format('%s.%s:%s:%s', v_generation, coalesce(v_open[1], v_max), v_max,
                          array_to_string(v_open, ','));
  end if;
  return next;
end;
$$;
