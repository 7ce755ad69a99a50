-- Format the cursor of one partition as text. The text has the position of the reader and the
-- identity of the database in which the position is valid. Its fields are:
--
-- ff2 : partition : installation : system : timeline : generation : last xid
--     : unfinished transactions : id of the last event : its time : its execution : trim mark
--     : checksum
--
-- The last xid is the highest transaction that was delivered. The unfinished transactions have a
-- lower xid. They are stored as distances from the last xid, so that the text stays short even if
-- there are hundreds of them. For a cursor in an older generation, p_snapshot is null, and the text
-- lists no unfinished transactions.
--
-- The last event is the event just before the position of the reader. The id of its execution is
-- stored as a hash, because that execution may belong to another namespace. The trim mark comes
-- from ff._read_trim_mark. The checksum detects a text that was shortened or changed.
drop function if exists ff._format_cursor;
create function ff._format_cursor(
  p_partition_key smallint,
  p_generation    integer,
  p_last_xid      xid8,
  p_snapshot      pg_snapshot,
  p_last_event_id bigint,
  p_last_event_at timestamptz,
  p_last_event_of text,
  p_trimmed       text
)
returns text
language plpgsql
as $$
declare
  v_last bigint := coalesce(p_last_xid::text::bigint, 0);
  v_body text;
begin
  v_body := concat_ws(':',
    'ff2', p_partition_key,
    (select left(m.value, 16) from ff.meta m where m.name = 'installation_id'),
    (select to_hex(s.system_identifier) from pg_control_system() s),
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
    p_generation,
    v_last,
    coalesce((
      select string_agg(to_hex(v_last - x.xid), ',' order by x.xid desc)
      from (
        select r.xid::text::bigint as xid from pg_snapshot_xip(p_snapshot) r(xid)
        union
        -- Our own transaction is not in the snapshot's list and may still write.
        select pg_current_xact_id_if_assigned()::text::bigint
      ) x
      where x.xid < v_last and p_snapshot is not null
    ), ''),
    coalesce(p_last_event_id, 0),
    coalesce((extract(epoch from p_last_event_at) * 1000000)::bigint, 0),
    coalesce(p_last_event_of, ''),
    coalesce(p_trimmed, ''));
  return v_body || ':' || left(encode(sha256(convert_to(v_body, 'UTF8')), 'hex'), 8);
end;
$$;
