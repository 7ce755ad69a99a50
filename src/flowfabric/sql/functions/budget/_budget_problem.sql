-- Check the declaration of a budget. Return the field and the text of the first problem, or null.
drop function if exists ff._budget_problem;
create function ff._budget_problem(
  p_dimensions    text[],
  p_hard_limits   bigint[],
  p_soft_limits   bigint[],
  p_period        text,
  p_period_zone   text,
  p_period_length interval,
  p_on_exceed     text
)
returns text[]
language plpgsql
stable
as $$
begin
  return case
    when cardinality(p_dimensions) not between 1 and 100 is not false
      then array['dimensions', 'must be 1 to 100']
    when exists (
        select from unnest(p_dimensions) d(name)
        where d.name is null or d.name !~ E'^[^\x01-\x20\x7f]{1,64}$')
      then array['dimensions', 'must each be 1 to 64 characters without whitespace']
    when cardinality(p_dimensions) <> (select count(distinct d) from unnest(p_dimensions) d)
      then array['dimensions', 'must not repeat a dimension']
    when cardinality(p_hard_limits) is distinct from cardinality(p_dimensions)
      or array_ndims(p_hard_limits) > 1
      then array['hard_limits', 'must be one per dimension']
    when p_soft_limits is not null and cardinality(p_soft_limits) <> cardinality(p_dimensions)
      then array['soft_limits', 'must be one per dimension']
    when exists (select from unnest(p_hard_limits) l(amount) where l.amount < 1)
      then array['hard_limits', 'must be at least 1; null means no limit']
    when exists (select from unnest(p_soft_limits) l(amount) where l.amount < 1)
      then array['soft_limits', 'must be at least 1; null means no limit']
    when exists (select from unnest(p_hard_limits, p_soft_limits) l(hard, soft)
                 where l.soft > l.hard)
      then array['soft_limits', 'must not be above the hard limit']
    when p_period not in ('hour', 'day', 'week', 'month', 'interval')
      then array['period', 'must be hour, day, week, month or interval']
    when (p_period is not distinct from 'interval') <> (p_period_length is not null)
      then array['period_length', 'must be given with the period interval, and only with it']
    when not ff._is_within(p_period_length, interval '1 minute', interval '3660 days')
      then array['period_length', 'must be a minute to ten years, in days or smaller units']
    when p_period_zone is not null and (p_period is null or p_period = 'interval')
      then array['period_zone', 'may be given only with the period hour, day, week or month']
    when p_period_zone is not null and not exists (
        select from pg_timezone_names z where z.name = p_period_zone)
      then array['period_zone', 'must be the name of a time zone, as in Europe/Madrid']
    when p_on_exceed is null or p_on_exceed not in ('fail', 'suspend', 'warn')
      then array['on_exceed', 'must be fail, suspend or warn'] end;
end;
$$;
