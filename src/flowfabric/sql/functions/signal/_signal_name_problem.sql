-- Check the name of a signal. Return the text of the problem, or null.
drop function if exists ff._signal_name_problem;
create function ff._signal_name_problem(p_name text)
returns text
language plpgsql
immutable
as $$
begin
  return case
    when p_name is null or p_name = '' or octet_length(p_name) > 256
      or p_name ~ E'[\x01-\x1f\x7f]'
      then 'must be 1 to 256 bytes without control characters'
  end;
end;
$$;
