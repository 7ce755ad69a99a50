-- Return the position of the highest trimmed event as `generation.xid`, the form that a cursor
-- stores. Return null if nothing was trimmed.
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
