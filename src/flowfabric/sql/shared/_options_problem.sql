-- Check the options of a submission: the rare fields that submit_executions documents, as one JSON
-- object. Return the field and the text of the first problem, or null. This function reads no
-- table. Other functions check whether the parents, gates and keys in the options exist.
drop function if exists ff._options_problem;
create function ff._options_problem(p_options jsonb)
returns text[]
language plpgsql
stable
as $$
declare
  v_field   text;
  v_text    text;
  v_problem text;
  v_rest    jsonb;
begin
  if p_options is null then
    return null;
  end if;
  if jsonb_typeof(p_options) <> 'object' then
    return array['options', 'must be an object'];
  end if;
  -- Most submissions of the Python client have only this field, which the client always sets.
  if p_options - 'max_reclaims' = '{}' and ff._is_count(p_options -> 'max_reclaims') then
    return null;
  end if;
  v_rest := p_options - array[
    'delayed_until', 'deadline_ms', 'deadline_at', 'policy', 'max_reclaims', 'tags', 'creator',
    'key', 'key_fingerprint', 'key_scope', 'key_window_ms', 'key_partitions', 'parent_id',
    'with_parent', 'trace_context', 'task_version', 'quotas', 'budgets', 'fair_key'];
  if v_rest <> '{}' then
    return array[(select min(k.field) from jsonb_object_keys(v_rest) k(field)),
                 'is not a field of an item'];
  end if;

  -- Check the type of each field.
  v_field := case
    when jsonb_typeof(p_options -> 'creator') not in ('string', 'null') then 'creator'
    when jsonb_typeof(p_options -> 'key') not in ('string', 'null') then 'key'
    when jsonb_typeof(p_options -> 'key_scope') not in ('string', 'null') then 'key_scope'
    when jsonb_typeof(p_options -> 'trace_context') not in ('string', 'null') then 'trace_context'
    when jsonb_typeof(p_options -> 'task_version') not in ('string', 'null') then 'task_version'
    when jsonb_typeof(p_options -> 'fair_key') not in ('string', 'null') then 'fair_key' end;
  if v_field is not null then
    return array[v_field, 'must be text'];
  end if;
  v_field := case
    when jsonb_typeof(p_options -> 'deadline_ms') not in ('number', 'null') then 'deadline_ms'
    when jsonb_typeof(p_options -> 'key_window_ms') not in ('number', 'null') then 'key_window_ms' end;
  if v_field is not null then
    return array[v_field, 'must be a number of milliseconds, at most a hundred years'];
  end if;
  if p_options ?| array['delayed_until', 'deadline_at'] then
    foreach v_field in array array['delayed_until', 'deadline_at'] loop
      v_text := p_options ->> v_field;
      continue when v_text is null;
      v_problem := 'must be a time with its zone, as in 2026-03-01T09:00:00Z';
      if v_text !~* ('^[0-9]{4}(-[0-9]{2}){2}[t ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?'
                     '(z|[+-][0-9]{2}(:?[0-9]{2})?)$') then
        return array[v_field, v_problem];
      end if;
      begin
        perform v_text::timestamptz;
      exception when data_exception then
        return array[v_field, v_problem];
      end;
    end loop;
  end if;
  v_text := p_options ->> 'parent_id';
  if v_text is not null and (v_text !~* '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$'
                             or ff._is_nil_id(v_text::uuid)) then
    return array['parent_id', 'must be a uuid other than the nil uuid'];
  end if;
  if jsonb_typeof(p_options -> 'with_parent') not in ('boolean', 'null') then
    return array['with_parent', 'must be true or false'];
  end if;
  if p_options ?| array['quotas', 'budgets'] then
    foreach v_field in array array['quotas', 'budgets'] loop
      continue when p_options ->> v_field is null;
      if jsonb_typeof(p_options -> v_field) <> 'array'
         or jsonb_array_length(p_options -> v_field) > 20
         or exists (
           select from jsonb_array_elements(p_options -> v_field) g(id)
           where jsonb_typeof(g.id) not in ('string', 'number')
             or (g.id #>> '{}') !~ '^[0-9]{1,19}$'
             or (g.id #>> '{}')::numeric not between
                case when v_field = 'quotas' then 0 else 4611686018427387904 end and
                case when v_field = 'quotas' then 4611686018427387903
                     else 9223372036854775807 end) then
        return array[v_field, 'must be at most 20 ids from register_gates'];
      end if;
    end loop;
  end if;
  if p_options ->> 'key_fingerprint' !~* '^([0-9a-f]{2})*$' then
    return array['key_fingerprint', 'must be bytes in hexadecimal'];
  end if;

  -- Check the range of each value. Adding a duration to a time outside the calendar would fail
  -- later.
  if p_options ?| array['policy', 'tags'] then
    v_problem := ff._policy_problem(p_options ->> 'policy');
    if v_problem is not null then
      return array['policy', v_problem];
    end if;
    v_problem := ff._tags_problem(p_options ->> 'tags');
    if v_problem is not null then
      return array['tags', v_problem];
    end if;
  end if;
  return case
    when (p_options ->> 'delayed_until')::timestamptz >= timestamptz '9999-01-01 00:00:00+00'
      then array['delayed_until', 'must be before the year 9999']
    when abs((p_options ->> 'deadline_ms')::numeric) > 3155760000000
      then array['deadline', 'must be at most a hundred years']
    -- The smallest duration that can be stored is a microsecond.
    when abs(nullif((p_options ->> 'deadline_ms')::numeric, 0)) < 0.001
      then array['deadline', 'must be 0 or at least a microsecond']
    when (p_options ->> 'deadline_at')::timestamptz < timestamptz '0001-01-02 00:00:00+00'
      or (p_options ->> 'deadline_at')::timestamptz >= timestamptz '9999-01-01 00:00:00+00'
      then array['deadline_at', 'must be between the years 1 and 9999']
    when p_options ->> 'max_reclaims' is not null and not ff._is_count(p_options -> 'max_reclaims')
      then array['max_reclaims', 'must be from 0 to 1000000']
    when octet_length(p_options ->> 'creator') > 256
      then array['creator', 'must be at most 256 bytes']
    when octet_length(p_options ->> 'key') not between 1 and 512
      then array['key', 'must be 1 to 512 bytes']
    when p_options ->> 'key' is not null and p_options ->> 'key_fingerprint' is null
      then array['key_fingerprint', 'is needed with a key']
    when p_options ->> 'key' is not null
      and p_options ->> 'key_scope' not in ('window', 'unfinished')
      then array['key_scope', 'must be window or unfinished']
    when p_options ->> 'key' is not null
      and (p_options ->> 'key_window_ms')::numeric not between 0 and 315576000000
      then array['key_window', 'must be between 0 and ten years']
    when p_options ->> 'key' is not null
      and nullif((p_options ->> 'key_window_ms')::numeric, 0) < 0.001
      then array['key_window', 'must be 0 or at least a microsecond']
    when p_options ->> 'key_partitions' is not null and (
        not ff._is_count(p_options -> 'key_partitions')
        or (p_options ->> 'key_partitions')::integer not between 1 and 32767)
      then array['key_partitions', 'must be the number of partitions of keys, 1 to 32767']
    when (p_options ->> 'with_parent')::boolean and p_options ->> 'parent_id' is null
      then array['parent_id', 'is needed for a child that ends with its parent']
    when octet_length(p_options ->> 'trace_context') > 4096
      then array['trace_context', 'must be at most 4096 bytes']
    when octet_length(p_options ->> 'task_version') not between 1 and 256
      then array['task_version', 'must be 1 to 256 bytes']
    when octet_length(p_options ->> 'fair_key') > 256
      then array['fair_key', 'must be at most 256 bytes'] end;
end;
$$;
