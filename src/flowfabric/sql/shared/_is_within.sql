-- Tell whether a duration lies between two others or equals one of them. Returns null if an
-- argument is null.
--
-- The answer is always false for a duration with months. Comparisons count a month as 30 days, so
-- '100 years -35999 days' compares as one day, although it moves a time by more than a year.
--
-- The answer is also false for more than 36525 days, even if hours with the opposite sign shorten
-- the duration. To add a duration to a time, PostgreSQL adds the days before the hours. The days
-- alone could lead beyond the end of the calendar.
drop function if exists ff._is_within;
create function ff._is_within(
  p_span  interval,
  p_least interval,
  p_most  interval
)
returns boolean
language plpgsql
immutable
strict
as $$
begin
  return p_span between p_least and p_most and extract(year from p_span) = 0
    and extract(month from p_span) = 0 and abs(extract(day from p_span)) <= 36525;
end;
$$;
