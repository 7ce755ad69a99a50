-- Tell whether a duration has months or years. Comparisons count a month as 30 days, so such a duration
-- can pass a check of its size and then lead anywhere: added to a time, it may even leave the range.
drop function if exists ff._has_months;
create function ff._has_months(p_span interval)
returns boolean
language plpgsql
immutable
as $$
begin
  return extract(month from p_span) <> 0 or extract(year from p_span) <> 0;
end;
$$;
