-- Read the next signals of the feed after a cursor, in order of their transactions. Also return the
-- cursor after them. A signal can be read once its transaction has committed, and is never skipped.
--
-- A cursor is a snapshot, as for ff.read_events: it says which transactions were delivered. The
-- cursor null reads from the beginning. The cursor `now` reads nothing, and returns the cursor of
-- this moment. The cursor never moves beyond the delivered signals.
--
-- A page has whole transactions. Its last row has no signal, only the next cursor. Signals are
-- trimmed with their execution. A reader does not learn of trimmed signals.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF203 read_only_server
-- Locks:    none
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
  v_now  constant pg_snapshot := pg_current_snapshot();
  v_own  constant xid8 := coalesce(pg_current_xact_id_if_assigned(), '0');
  v_seen pg_snapshot;
  v_cut  xid8;
  v_max  bigint;
  v_open bigint[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  perform ff._check_primary();
  if p_cursor = 'now' then
    v_seen := '3:3:';
    v_cut := (pg_snapshot_xmax(v_now)::text::bigint - 1)::text::xid8;
  else
    if not ff._is_snapshot(p_cursor) then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'cursor', 'problem', 'must be a cursor of read_signals, now, or nothing'));
    end if;
    v_seen := coalesce(p_cursor, '3:3:')::pg_snapshot;
    select max(p.xid::text::bigint)::text::xid8 into v_cut
    from (
      select g.xid from ff.signal g
      where g.partition_key = p_partition_key and g.xid >= pg_snapshot_xmin(v_seen)
        and g.xid < pg_snapshot_xmax(v_now)
        and not pg_visible_in_snapshot(g.xid, v_seen) and pg_visible_in_snapshot(g.xid, v_now)
        and g.xid <> v_own
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
    where g.partition_key = p_partition_key and g.xid >= pg_snapshot_xmin(v_seen)
      and g.xid <= v_cut
      and not pg_visible_in_snapshot(g.xid, v_seen) and pg_visible_in_snapshot(g.xid, v_now)
      and g.xid <> v_own and (p_namespace is null or e.namespace = p_namespace)
    order by g.xid, g.signal_id;
  end if;
  next_cursor := coalesce(p_cursor, '3:3:');
  if v_cut is not null then
    v_max := greatest(pg_snapshot_xmax(v_seen)::text::bigint, v_cut::text::bigint + 1);
    -- List the transactions that are unfinished now, and the transactions after this page.
    v_open := array(
      select distinct o.xid
      from (
        select r.xid::text::bigint as xid from pg_snapshot_xip(v_now) r(xid)
        union all
        select r.xid::text::bigint from pg_snapshot_xip(v_seen) r(xid) where r.xid > v_cut
        union all
        select v_own::text::bigint where v_own <> '0') o
      where o.xid < v_max
      order by o.xid);
    next_cursor := format('%s:%s:%s', coalesce(v_open[1], v_max), v_max,
                          array_to_string(v_open, ','));
  end if;
  return next;
end;
$$;
