-- Return when a budget is reset next: the end of the current period of its zone, or the next whole
-- number of intervals after p_phase_at. Null for a budget without a period.
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
  return (date_trunc(p_period::text, p_now at time zone v_zone)
          + ('1 ' || p_period::text)::interval) at time zone v_zone;
end;
$$;
