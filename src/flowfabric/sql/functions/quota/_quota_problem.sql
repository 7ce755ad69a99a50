-- Check the limits of a quota. Return the field and the text of the first problem, or null.
drop function if exists ff._quota_problem;
create function ff._quota_problem(
  p_concurrency integer,
  p_rate        integer,
  p_rate_window interval,
  p_overflow    text
)
returns text[]
language plpgsql
immutable
as $$
begin
  return case
    when p_concurrency < 1
      then array['concurrency', 'must be 1 or more; leave it out for no limit']
    when p_rate < 1
      then array['rate', 'must be 1 or more; leave it out for no limit']
    when p_rate is not null and p_rate_window is null
      then array['rate_window', 'is needed with a rate']
    when p_rate is null and p_rate_window is not null
      then array['rate', 'is needed with a rate_window']
    when not ff._is_within(p_rate_window, interval '1 second', interval '31 days')
      then array['rate_window', 'must be from a second to 31 days, in days or smaller units']
    when p_overflow is null or p_overflow not in ('queue', 'refuse')
      then array['overflow', 'must be queue or refuse'] end;
end;
$$;
