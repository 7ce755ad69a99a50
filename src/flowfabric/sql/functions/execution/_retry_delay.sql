-- Decide whether another attempt follows: returns the delay before it, or null. This is the only
-- place that decides.
--
-- A retry follows while retries are left, unless the failure class is not worth retrying, or the
-- policy lists the categories to retry and this is not one of them. Without a policy there is no
-- retry. If the handler asked for a delay, the retry waits that long, whatever the category, and
-- without a policy there are 3 retries.
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
