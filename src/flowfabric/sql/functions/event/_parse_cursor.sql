-- Split a cursor into its parts. Also return the generation in which events are written now, and
-- the trim mark: the position up to which events were trimmed. A text that is not a cursor of this
-- partition is refused.
--
-- A cursor is lost if it does not belong to the events of this database, or if its next events were
-- trimmed. If p_refuses is true, a lost cursor is refused. If p_refuses is false, a lost cursor is
-- returned with is_lost true.
--
-- The last event is the event just before the position of the reader. The cursor has the id and the
-- time of this event, and a hash of its execution. If the last event is missing but was not
-- trimmed, the database has lost commits that the reader has seen. This happens after a failover,
-- or after an older copy of the data was restored.
--
-- Transaction numbers have a meaning on one server only. So a cursor in the present generation must
-- come from this server.
drop function if exists ff._parse_cursor;
create function ff._parse_cursor(
  p_partition_key   smallint,
  p_cursor          text,
  p_refuses         boolean default true,
  out current       integer,
  out generation    integer,
  out last_xid      xid8,
  out unfinished    xid8[],
  out last_event_id bigint,
  out last_event_at timestamptz,
  out last_event_of text,
  out trimmed       text,
  out is_lost       boolean
)
returns record
language plpgsql
as $$
declare
  v_parts    text[] := string_to_array(p_cursor, ':');
  v_gone     integer;
  v_gone_to  xid8;
  v_losses   jsonb;
  -- Whether a subscription stands at the cursor, and whether it has lost events there.
  v_is_kept  boolean := false;
  v_is_lossy boolean := false;
  v_reason   text;
begin
  if starts_with(p_cursor, 'ff1:') then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cursor', 'problem', 'is of an older release; open a new one'));
  end if;
  if p_cursor is null or octet_length(p_cursor) > 65536 or cardinality(v_parts) <> 13
     or p_cursor !~ ('^ff2:[0-9]{1,5}:[0-9a-f]{16}:[0-9a-f]{1,16}:[0-9A-F]{8}:[0-9]{1,9}'
                     || ':[0-9]{1,18}:([1-9a-f][0-9a-f]{0,14}(,[1-9a-f][0-9a-f]{0,14})*)?'
                     || ':[0-9]{1,18}:[0-9]{1,18}:[0-9a-f]{0,16}'
                     || ':([0-9]{1,9}[.][0-9]{1,18})?:[0-9a-f]{8}$')
     or right(p_cursor, 8) <> left(
          encode(sha256(convert_to(left(p_cursor, -9), 'UTF8')), 'hex'), 8) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cursor', 'problem', 'is not a cursor of ours; open one with open_cursor'));
  end if;
  if v_parts[2]::integer is distinct from p_partition_key then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cursor', 'problem', 'belongs to partition ' || v_parts[2]));
  end if;

  current := ff._find_generation(p_partition_key);
  generation := v_parts[6];
  last_xid := v_parts[7];
  unfinished := array(
    -- A forged cursor may name a transaction several times; its events are delivered once.
    select distinct
           (v_parts[7]::bigint - ('x' || lpad(d.distance, 16, '0'))::bit(64)::bigint)::text::xid8
    from unnest(string_to_array(nullif(v_parts[8], ''), ',')) d(distance));
  last_event_id := v_parts[9];
  last_event_at := timestamptz 'epoch' + v_parts[10]::bigint * interval '1 microsecond';
  last_event_of := v_parts[11];
  trimmed := ff._read_trim_mark(p_partition_key);
  v_gone := split_part(trimmed, '.', 1);
  v_gone_to := split_part(trimmed, '.', 2);
  -- The position of a subscription has expired only if a loss was recorded after its last change,
  -- because events that a subscription needs are kept. Any other cursor has expired if one of its
  -- unfinished transactions is not above the trim mark and has ended, even if that transaction
  -- wrote no event here.
  v_losses := (select m.losses from ff.trim_mark m where m.partition_key = p_partition_key);
  if v_losses <> '{}' or (trimmed <> v_parts[12] and unfinished <> '{}') then
    select count(*) > 0,
           coalesce(bool_or((v_losses ->> (s.namespace || ' ' || s.name))::timestamptz
                            > greatest(s.created_at, s.acked_at, s.changed_at)), false)
      into v_is_kept, v_is_lossy
    from ff.subscription s
    where p_cursor = any (string_to_array(s.cursor_text, '/'));
  end if;
  v_reason := case
    when v_parts[3] <> (select left(m.value, 16) from ff.meta m where m.name = 'installation_id')
      then 'another_installation'
    when generation > current
      then 'history_lost'
    when generation = current
      and v_parts[4] <> (select to_hex(s.system_identifier) from pg_control_system() s)
      then 'another_system'
    when generation = current
      and v_parts[5] <> left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
      then 'another_timeline'
    when trimmed <> v_parts[12] and (
        (generation, last_xid) < (v_gone, v_gone_to)
        or not v_is_kept and exists (
          select from unnest(unfinished) u(xid)
          where (generation, u.xid) <= (v_gone, v_gone_to)
            and (generation < current or pg_visible_in_snapshot(u.xid, pg_current_snapshot()))))
      then 'trimmed'
    when v_is_lossy then 'trimmed'
    when last_event_id <> 0 and (trimmed is null or (generation, last_xid) > (v_gone, v_gone_to))
      and not exists (
        select from ff.event e
        where e.partition_key = p_partition_key and e.generation = _parse_cursor.generation
          and e.xid = last_xid and e.event_id = last_event_id
          and ff._hash_id(e.execution_id) = last_event_of and e.occurred_at = last_event_at
        offset 0)
      then 'history_lost' end;
  is_lost := v_reason is not null;
  if is_lost and p_refuses then
    -- Undelivered events of long transactions may be older than the last event.
    last_event_at := least(
      last_event_at,
      (select min(e.occurred_at) from ff.event e
       where e.partition_key = p_partition_key
         and (e.generation, e.xid) > (_parse_cursor.generation, last_xid)),
      (select min(e.occurred_at) from ff.event e
       where e.partition_key = p_partition_key and e.generation = _parse_cursor.generation
         and e.xid = any (unfinished)));
    perform ff._refuse('WF403', 'cursor_expired', jsonb_build_object(
      'reason', v_reason, 'resume_from', last_event_at - interval '1 minute',
      'hint', 'open a cursor at resume_from; some events will be seen twice'));
  end if;
end;
$$;
