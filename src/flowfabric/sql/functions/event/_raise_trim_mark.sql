-- Remember the highest transaction of which events were trimmed: a cursor before it has expired.
-- It only rises, whoever trims at the same time. The last thing a transaction does, because others
-- wait for it.
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
