-- Say what is wrong with the version of an app, or return null. It is 1 to 8 numbers.
drop function if exists ff._app_version_problem;
create function ff._app_version_problem(p_version integer[])
returns text
language plpgsql
immutable
as $$
begin
  return case when coalesce(cardinality(p_version) not between 1 and 8, true)
                or array_ndims(p_version) > 1 or array_position(p_version, null) is not null
                or 0 > any (p_version)
           then 'must be 1 to 8 numbers from 0 on' end;
end;
$$;
