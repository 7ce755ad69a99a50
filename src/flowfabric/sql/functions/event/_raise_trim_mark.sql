-- Record the highest trimmed event; a cursor before it has expired. The mark never falls, even if
-- several calls trim at once. Call this last in a transaction, because other callers wait for the
-- row of the mark.
drop function if exists ff._raise_trim_mark;
create function ff._raise_trim_mark(p_partition_key smallint, p_generation integer, p_xid xid8)
returns void
language plpgsql
as $$
begin
  if p_xid is not null then
    insert into ff.trim_mark as m (partition_key, generation, xid)
    values (p_partition_key, p_generation, p_xid)
    on conflict (partition_key) do update
      set generation = excluded.generation, xid = excluded.xid
      where (m.generation, m.xid) < (excluded.generation, excluded.xid);
  end if;
end;
$$;
