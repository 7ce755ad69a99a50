-- Tell whether bytes are one JSON value, in UTF-8. A value that is nested too deeply for the parser
-- is not valid.
drop function if exists ff._is_json;
create function ff._is_json(p_bytes bytea)
returns boolean
language plpgsql
stable
as $$
begin
  perform convert_from(p_bytes, 'UTF8')::json;
  return true;
exception when data_exception or program_limit_exceeded then
  return false;
end;
$$;
