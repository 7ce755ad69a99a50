-- Return the highest event trimmed as `generation.xid`, the form it has in a cursor; null if none.
drop function if exists ff._read_trim_mark;
create function ff._read_trim_mark(p_partition_key smallint)
returns text
language plpgsql
as $$
begin
  return (
    select m.generation || '.' || m.xid
    from ff.trim_mark m where m.partition_key = p_partition_key);
end;
$$;
