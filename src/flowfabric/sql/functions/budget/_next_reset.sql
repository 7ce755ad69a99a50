-- Return when a budget is reset next, or null if it has no period. An hour, a day, a week or a
-- month ends by the calendar of p_period_zone (null means UTC). A period of the kind `interval`
-- ends at the next multiple of p_period_length, counted from p_phase_at.
drop function if exists ff._next_reset;
create function ff._next_reset(
  p_period        ff.budget_period,
  p_period_zone   text,
  p_period_length interval,
  p_phase_at      timestamptz,
  p_now           timestamptz
)
returns timestamptz
language plpgsql
stable
as $$
declare
  v_zone constant text := coalesce(p_period_zone, 'UTC');
begin
  if p_period = 'interval' then
    return p_phase_at + make_interval(secs => extract(epoch from p_period_length) * (
      floor(extract(epoch from p_now - p_phase_at) / extract(epoch from p_period_length)) + 1));
  end if;
  if p_period = 'hour' then
    -- Compute from p_now and not from the local time, because a local hour comes twice when the
    -- clocks go back.
    return p_now + interval '1 hour'
      - (p_now at time zone v_zone - date_trunc('hour', p_now at time zone v_zone));
  end if;
  return (date_trunc(p_period::text, p_now at time zone v_zone)
          + ('1 ' || p_period::text)::interval) at time zone v_zone;
end;
$$;
