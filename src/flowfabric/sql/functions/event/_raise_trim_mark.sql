-- Record the highest transaction whose events were trimmed: a cursor before it has expired. The
-- mark only rises, also under concurrent trims. Call it last in a transaction, because other
-- callers wait for its row.
drop function if exists ff._raise_trim_mark;
create function ff._raise_trim_mark(p_partition_key smallint, p_xid xid8)
returns void
language plpgsql
as $$
begin
  if p_xid is not null then
    insert into ff.meta as m (name, value)
    values ('trimmed_xid:' || p_partition_key, p_xid::text)
    on conflict (name) do update
      set value = greatest(m.value::xid8, excluded.value::xid8)::text
      where m.value is null or m.value::xid8 < excluded.value::xid8;
  end if;
end;
$$;
