-- Tell whether a text is a valid snapshot: two transaction numbers, and an ascending list of
-- unfinished transactions between them. Null counts as valid.
drop function if exists ff._is_snapshot;
create function ff._is_snapshot(p_text text)
returns boolean
language plpgsql
immutable
as $$
declare
  v_parts text[];
  v_open  bigint[];
begin
  if p_text is null then
    return true;
  end if;
  if p_text !~ '^[1-9][0-9]{0,17}:[1-9][0-9]{0,17}:([1-9][0-9]{0,17}(,[1-9][0-9]{0,17})*)?$' then
    return false;
  end if;
  v_parts := string_to_array(p_text, ':');
  v_open := array(
    select u.xid::bigint
    from unnest(string_to_array(nullif(v_parts[3], ''), ',')) with ordinality u(xid, n)
    order by u.n);
  return v_parts[1]::bigint <= v_parts[2]::bigint
    and v_open = array(select distinct u.xid from unnest(v_open) u(xid) order by 1)
    and not exists (
      select from unnest(v_open) u(xid)
      where u.xid < v_parts[1]::bigint or u.xid >= v_parts[2]::bigint);
end;
$$;
