-- Decide whether another attempt follows. Return the delay before it, or null if none follows. No
-- other function makes this decision.
--
-- Two rules come first. A failure of class permanent or cancelled is never retried. No attempt
-- follows if the execution has used up the retries of its policy; the default is 3 retries.
--
-- If the handler asked for a delay, the retry waits that long, whatever the category of the
-- failure.
--
-- If the handler did not ask for a delay, the retry policy decides. If there is no retry policy,
-- there is no retry. If the policy lists categories, only failures of these categories are retried.
drop function if exists ff._retry_delay;
create function ff._retry_delay(
  p_policy      jsonb,
  p_retry_count integer,
  p_class       text,
  p_category    text,
  p_chance      double precision,
  p_asked       interval default null
)
returns interval
language plpgsql
immutable
as $$
declare
  v_retry constant jsonb := p_policy -> 'retry_policy';
begin
  if p_retry_count >= coalesce((v_retry ->> 'max_retries')::numeric, 3)
     or p_class in ('permanent', 'cancelled') then
    return null;
  end if;
  if p_asked is not null then
    return p_asked;
  end if;
  if v_retry is null
     or (coalesce(jsonb_array_length(v_retry -> 'retryable_categories'), 0) > 0
         and not v_retry -> 'retryable_categories' ? coalesce(p_category, p_class)) then
    return null;
  end if;
  return ff._backoff_delay(v_retry -> 'backoff', p_retry_count, p_chance);
end;
$$;
