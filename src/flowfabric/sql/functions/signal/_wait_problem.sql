-- Check a wait. Return the field and the text of the first problem, or null.
drop function if exists ff._wait_problem;
create function ff._wait_problem(
  p_name       text,
  p_occurrence integer,
  p_position   integer,
  p_sequential boolean,
  p_follows    integer,
  p_timeout    interval,
  p_take       boolean
)
returns text[]
language plpgsql
immutable
as $$
begin
  return case
    when p_name is null or p_name = '' or octet_length(p_name) > 300
      or p_name ~ E'[\x01-\x1f\x7f]'
      then array['name', 'must be 1 to 300 bytes without control characters']
    when p_occurrence is null or p_occurrence < 0
      then array['occurrence', 'must be a number, 0 or more']
    when p_position is null or p_position < 0
      then array['position', 'must be a number, 0 or more']
    when p_follows not between -1 and p_position
      then array['follows', 'must be a position up to its own, or -1']
    when p_sequential is null then array['is_sequential', 'must be true or false']
    when p_take is null then array['take', 'must be true or false']
    when not ff._is_within(p_timeout, interval '0', interval '36525 days')
      then array['timeout', 'must be between 0 and a hundred years, in days or smaller units']
  end;
end;
$$;
