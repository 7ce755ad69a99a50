-- Check a step. Return the field and the text of the first problem, or null.
drop function if exists ff._step_problem;
create function ff._step_problem(
  p_name       text,
  p_occurrence integer,
  p_position   integer,
  p_sequential boolean,
  p_kind       text,
  p_value      bytea,
  p_encoding   text,
  p_delay      interval,
  p_until_at   timestamptz,
  p_follows    integer
)
returns text[]
language plpgsql
stable
as $$
begin
  return case
    when p_name is null or p_name = '' or octet_length(p_name) > 256
      or p_name ~ E'[\x01-\x1f\x7f]'
      then array['name', 'must be 1 to 256 bytes without control characters']
    when p_occurrence is null or p_occurrence < 0
      then array['occurrence', 'must be a number, 0 or more']
    when p_position is null or p_position < 0
      then array['position', 'must be a number, 0 or more']
    when p_follows not between -1 and p_position
      then array['follows', 'must be -1 or at most the position of the step']
    when p_sequential is null then array['is_sequential', 'must be true or false']
    when p_kind is null or p_kind not in ('step', 'failure', 'sleep', 'now')
      then array['kind', 'must be step, failure, sleep or now']
    when octet_length(p_value) > 1048576
      then array['value', 'is larger than 1 MiB (1048576 bytes)']
    when p_kind in ('sleep', 'now') and p_value is not null
      then array['value', 'belongs to a step or a failure only']
    when octet_length(p_encoding) > 64
      then array['encoding', 'must be at most 64 bytes']
    when p_kind = 'sleep' and num_nonnulls(p_delay, p_until_at) <> 1
      then array['delay', 'give either a delay or a time to sleep until']
    when p_kind <> 'sleep' and num_nonnulls(p_delay, p_until_at) > 0
      then array['delay', 'belongs to a sleep only']
    when not ff._is_within(p_delay, interval '-36525 days', interval '36525 days')
      then array['delay', 'must be at most a hundred years, in days or smaller units']
    when p_until_at < timestamptz '0001-01-02 00:00:00+00'
      or p_until_at >= timestamptz '9999-01-01 00:00:00+00'
      then array['until_at', 'must be between the years 1 and 9999']
  end;
end;
$$;
