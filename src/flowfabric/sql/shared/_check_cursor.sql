-- Take a cursor apart, after making sure that it belongs to this history of events.
--
-- The anchor is the highest event delivered. If it is gone and was not trimmed, or if it is another
-- one now, commits that this cursor has seen were lost: a failover, or an older copy of the data.
drop function if exists ff._check_cursor;
create function ff._check_cursor(p_partition_key smallint, p_cursor text)
returns text[]
language plpgsql
set search_path = ''
as $$
declare
  v_parts   text[] := string_to_array(p_cursor, ':');
  v_at      timestamptz;
  v_trimmed xid8;
  v_reason  text;
begin
  if p_cursor is null or octet_length(p_cursor) > 65536 or cardinality(v_parts) <> 9
     or p_cursor !~ ('^ff1:[0-9]{1,5}:[0-9a-f]{1,16}:[0-9A-F]{8}:[0-9]{1,18}:[0-9a-f,]*'
                     || ':[0-9]{1,18}:[0-9]{1,18}:[0-9a-f-]{0,36}$') then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cursor', 'problem', 'is not a cursor of ours; open one with open_cursor'));
  end if;
  if v_parts[2]::integer <> p_partition_key then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cursor', 'problem', 'belongs to partition ' || v_parts[2]));
  end if;

  select m.value::xid8 into v_trimmed
  from ff.meta m where m.name = 'trimmed_xid:' || p_partition_key;
  v_at := timestamptz 'epoch' + v_parts[8]::bigint * interval '1 microsecond';
  v_reason := case
    when v_parts[3] <> (select to_hex(s.system_identifier) from pg_control_system() s)
      then 'another_system'
    when v_parts[4] <> left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
      then 'another_timeline'
    when v_trimmed is not null and least(
           v_parts[5]::bigint,
           v_parts[5]::bigint - ('x' || lpad(reverse(split_part(reverse(v_parts[6]), ',', 1)),
                                             16, '0'))::bit(64)::bigint) < v_trimmed::text::bigint
      then 'trimmed'
    when v_parts[7] <> '0' and (v_trimmed is null or v_parts[5]::xid8 > v_trimmed)
      and not exists (
        select from ff.event e
        where e.partition_key = p_partition_key and e.xid = v_parts[5]::xid8
          and e.event_id = v_parts[7]::bigint and e.execution_id = v_parts[9]::uuid
          and e.occurred_at = v_at)
      then 'history_lost' end;
  if v_reason is not null then
    perform ff._refuse('WF403', 'cursor_expired', jsonb_build_object(
      'reason', v_reason, 'resume_from', v_at - interval '1 minute',
      'hint', 'open a cursor at resume_from; some events will be seen twice'));
  end if;
  return v_parts;
end;
$$;
