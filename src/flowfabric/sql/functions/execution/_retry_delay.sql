-- Decide whether another attempt follows, and return the delay before it; null if none follows. No
-- other function decides this.
--
-- Without a policy there is no retry. With one, another attempt follows while retries are left,
-- unless failures of this class are never retried, or the policy lists categories and this category
-- is not among them. If the handler asked for a delay, the retry waits that long, whatever the
-- category; without a policy such a request gets up to 3 retries.
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
