-- Split a cursor into its parts, after checking that it belongs to this history of events.
--
-- The anchor is the highest event delivered. If it is gone but was not trimmed, or differs, then
-- commits that this cursor has seen were lost: after a failover, or because an older copy of the
-- data was restored.
drop function if exists ff._read_cursor;
create function ff._read_cursor(p_partition_key smallint, p_cursor text)
returns text[]
language plpgsql
as $$
declare
  v_parts      text[] := string_to_array(p_cursor, ':');
  v_at         timestamptz;
  v_trimmed    text;
  v_last       xid8;
  v_unfinished xid8[];
  v_reason     text;
begin
  if p_cursor is null or octet_length(p_cursor) > 65536 or cardinality(v_parts) <> 11
     or p_cursor !~ ('^ff1:[0-9]{1,5}:[0-9a-f]{1,16}:[0-9A-F]{8}:[0-9]{1,18}:[0-9a-f,]*'
                     || ':[0-9]{1,18}:[0-9]{1,18}:[0-9a-f]{0,16}:[0-9]{0,18}:[0-9a-f]{8}$')
     or right(p_cursor, 8) <> left(
          encode(sha256(convert_to(left(p_cursor, -9), 'UTF8')), 'hex'), 8) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cursor', 'problem', 'is not a cursor of ours; open one with open_cursor'));
  end if;
  if v_parts[2]::integer is distinct from p_partition_key then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cursor', 'problem', 'belongs to partition ' || v_parts[2]));
  end if;

  select m.value into v_trimmed
  from ff.meta m where m.name = 'trimmed_xid:' || p_partition_key;
  v_at := timestamptz 'epoch' + v_parts[8]::bigint * interval '1 microsecond';
  v_last := v_parts[5]::xid8;
  v_unfinished := array(
    select (v_parts[5]::bigint - ('x' || lpad(d.distance, 16, '0'))::bit(64)::bigint)::text::xid8
    from unnest(string_to_array(nullif(v_parts[6], ''), ',')) d(distance));
  v_reason := case
    when v_parts[3] <> (select to_hex(s.system_identifier) from pg_control_system() s)
      then 'another_system'
    when v_parts[4] <> left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
      then 'another_timeline'
    when v_trimmed <> v_parts[10] and (
        v_last < v_trimmed::xid8
        or exists (
          select from unnest(v_unfinished) u(xid)
          where u.xid <= v_trimmed::xid8
            and pg_visible_in_snapshot(u.xid, pg_current_snapshot())))
      then 'trimmed'
    when v_parts[7] <> '0' and (v_trimmed is null or v_last > v_trimmed::xid8)
      and not exists (
        select from ff.event e
        where e.partition_key = p_partition_key and e.xid = v_last
          and e.event_id = v_parts[7]::bigint and ff._hash_id(e.execution_id) = v_parts[9]
          and e.occurred_at = v_at)
      then 'history_lost' end;
  if v_reason is not null then
    -- Undelivered events of long transactions may be older than the anchor.
    v_at := least(
      v_at,
      (select min(e.occurred_at) from ff.event e
       where e.partition_key = p_partition_key and e.xid > v_last),
      (select min(e.occurred_at) from ff.event e
       where e.partition_key = p_partition_key and e.xid = any (v_unfinished)));
    perform ff._refuse('WF403', 'cursor_expired', jsonb_build_object(
      'reason', v_reason, 'resume_from', v_at - interval '1 minute',
      'hint', 'open a cursor at resume_from; some events will be seen twice'));
  end if;
  v_parts[10] := v_trimmed;
  return v_parts;
end;
$$;
