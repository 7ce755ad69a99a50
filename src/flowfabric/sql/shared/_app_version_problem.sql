-- Check the version of an app: an array of 1 to 8 numbers. Return the text of the problem, or null.
drop function if exists ff._app_version_problem;
create function ff._app_version_problem(p_version integer[])
returns text
language plpgsql
immutable
as $$
begin
  return case when coalesce(cardinality(p_version) not between 1 and 8, true)
                or array_ndims(p_version) > 1 or array_lower(p_version, 1) <> 1
                or array_position(p_version, null) is not null
                or 0 > any (p_version)
           then 'must be 1 to 8 numbers, each 0 or more' end;
end;
$$;
