-- Return the version of an app with zeros added, up to 8 numbers. Versions can then be compared: 1
-- and 1.0 are equal.
drop function if exists ff._comparable_version;
create function ff._comparable_version(p_version integer[])
returns integer[]
language plpgsql
immutable
as $$
begin
  return p_version || array_fill(0, array[8 - cardinality(p_version)]);
end;
$$;
