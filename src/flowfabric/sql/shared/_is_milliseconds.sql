-- Tell whether a JSON value is a valid number of milliseconds: at least p_least, and at most 100
-- years of 365 days. A value above 0 and below 0.001 is not valid, because durations are stored in
-- whole microseconds.
drop function if exists ff._is_milliseconds;
create function ff._is_milliseconds(p_value jsonb, p_least numeric default 1)
returns boolean
language plpgsql
immutable
as $$
begin
  if jsonb_typeof(p_value) is distinct from 'number' then
    return false;
  end if;
  return p_value::text::numeric between p_least and 3153600000000
    and (p_value::text::numeric = 0 or p_value::text::numeric >= 0.001);
end;
$$;
