-- Check a policy. Return the text of the first problem, or null. An unknown or malformed field is a
-- problem.
drop function if exists ff._policy_problem;
create function ff._policy_problem(p_policy text)
returns text
language plpgsql
immutable
as $$
declare
  v_policy  jsonb;
  v_retry   jsonb;
  v_stream  jsonb;
  v_entry   record;
  v_unknown text;
begin
  if p_policy is null then
    return null;
  end if;
  if octet_length(p_policy) > 65536 then
    return 'is larger than 64 KiB';
  end if;
  begin
    v_policy := p_policy::jsonb;
  exception when data_exception or program_limit_exceeded then
    return 'malformed: it is not JSON';
  end;
  if jsonb_typeof(v_policy) <> 'object' then
    return 'malformed: it is not an object';
  end if;
  -- Refuse unknown fields: the engine would ignore them.
  select format('%s: is not a field of a policy', k.path) into v_unknown
  from (
    select p.key as path from jsonb_object_keys(v_policy) p(key)
    where p.key not in ('retry_policy', 'timeout_policy', 'max_reclaim_count', 'max_replay_count',
                        'retention_ms', 'stream_policy')
    union all
    select s.key || '.' || f.key
    from jsonb_each(v_policy) s
    cross join lateral jsonb_object_keys(
      case when s.key in ('retry_policy', 'timeout_policy', 'stream_policy')
             and jsonb_typeof(s.value) = 'object'
             then s.value else '{}' end) f(key)
    where s.key || '.' || f.key not in (
      'retry_policy.max_retries', 'retry_policy.backoff', 'retry_policy.retryable_categories',
      'timeout_policy.attempt_timeout_ms', 'stream_policy.max_frames', 'stream_policy.max_bytes',
      'stream_policy.retention_ms')
    union all
    select 'retry_policy.backoff.' || f.key
    from jsonb_object_keys(
      case when jsonb_typeof(v_policy #> '{retry_policy,backoff}') = 'object'
             then v_policy #> '{retry_policy,backoff}' else '{}' end) f(key)
    where f.key not in ('type', 'delay_ms', 'initial_delay_ms', 'max_delay_ms', 'multiplier',
                        'jitter')
  ) k
  order by k.path
  limit 1;
  if v_unknown is not null then
    return v_unknown;
  end if;
  for v_entry in
    select e.key, e.value from jsonb_each(v_policy) e
    where e.key in ('max_reclaim_count', 'max_replay_count')
  loop
    if not ff._is_count(v_entry.value) then
      return v_entry.key || ': must be a whole number from 0 to 1000000';
    end if;
  end loop;
  if v_policy ? 'retention_ms' and not ff._is_milliseconds(v_policy -> 'retention_ms', 0) then
    return 'retention_ms: must be a number from 0 to 3153600000000';
  end if;
  if v_policy ? 'timeout_policy' then
    if jsonb_typeof(v_policy -> 'timeout_policy') <> 'object' then
      return 'timeout_policy: must be an object';
    end if;
    if v_policy -> 'timeout_policy' ? 'attempt_timeout_ms'
       and not ff._is_milliseconds(v_policy #> '{timeout_policy,attempt_timeout_ms}') then
      return 'timeout_policy.attempt_timeout_ms: must be a number from 1 to 3153600000000';
    end if;
  end if;
  if v_policy ? 'stream_policy' then
    v_stream := v_policy -> 'stream_policy';
    if jsonb_typeof(v_stream) <> 'object' then
      return 'stream_policy: must be an object';
    end if;
    if v_stream ? 'retention_ms' and not ff._is_milliseconds(v_stream -> 'retention_ms', 0) then
      return 'stream_policy.retention_ms: must be a number from 0 to 3153600000000';
    end if;
    for v_entry in
      select e.key, e.value from jsonb_each(v_stream) e where e.key in ('max_frames', 'max_bytes')
    loop
      if jsonb_typeof(v_entry.value) <> 'number'
         or v_entry.value::text !~ '^[1-9][0-9]{0,9}$' or v_entry.value::text::bigint > 1073741824
      then
        return format('stream_policy.%s: must be a whole number from 1 to 1073741824', v_entry.key);
      end if;
    end loop;
  end if;
  v_retry := v_policy -> 'retry_policy';
  if v_retry is null then
    return null;
  end if;
  if jsonb_typeof(v_retry) <> 'object' then
    return 'retry_policy: must be an object';
  end if;
  if v_retry ? 'max_retries' and not ff._is_count(v_retry -> 'max_retries') then
    return 'retry_policy.max_retries: must be a whole number from 0 to 1000000';
  end if;
  if v_retry ? 'retryable_categories' then
    if jsonb_typeof(v_retry -> 'retryable_categories') <> 'array' then
      return 'retry_policy.retryable_categories: must be a list of text';
    end if;
    if exists (select from jsonb_array_elements(v_retry -> 'retryable_categories') c
               where jsonb_typeof(c) <> 'string') then
      return 'retry_policy.retryable_categories: must be a list of text';
    end if;
  end if;
  if v_retry ? 'backoff' then
    if jsonb_typeof(v_retry -> 'backoff') <> 'object' then
      return 'retry_policy.backoff: must be an object';
    end if;
    if coalesce(v_retry #>> '{backoff,type}', 'exponential') not in ('fixed', 'exponential') then
      return 'retry_policy.backoff.type: must be fixed or exponential';
    end if;
    if v_retry #> '{backoff,jitter}' is not null
       and jsonb_typeof(v_retry #> '{backoff,jitter}') <> 'boolean' then
      return 'retry_policy.backoff.jitter: must be true or false';
    end if;
    for v_entry in
      select e.key, e.value from jsonb_each(v_retry -> 'backoff') e
      where e.key in ('delay_ms', 'initial_delay_ms', 'max_delay_ms')
    loop
      if not ff._is_milliseconds(v_entry.value, 0) then
        return 'retry_policy.backoff.' || v_entry.key || ': must be a number from 0 to 3153600000000';
      end if;
    end loop;
    if v_retry #> '{backoff,multiplier}' is not null then
      if jsonb_typeof(v_retry #> '{backoff,multiplier}') <> 'number' then
        return 'retry_policy.backoff.multiplier: must be a number from 1 to 1000';
      elsif (v_retry #>> '{backoff,multiplier}')::numeric not between 1 and 1000 then
        return 'retry_policy.backoff.multiplier: must be a number from 1 to 1000';
      end if;
    end if;
  end if;
  return null;
end;
$$;
