-- Check tags. Return the text of the first problem, or null. The name of a tag has the form
-- `team.field`.
drop function if exists ff._tags_problem;
create function ff._tags_problem(p_tags text)
returns text
language plpgsql
immutable
as $$
declare
  v_tags jsonb;
  v_key  text;
begin
  if p_tags is null then
    return null;
  end if;
  if octet_length(p_tags) > 131072 then
    return 'are larger than 128 KiB';
  end if;
  begin
    v_tags := p_tags::jsonb;
  exception when data_exception or program_limit_exceeded then
    return 'malformed: they are not JSON, or hold a NUL character';
  end;
  if jsonb_typeof(v_tags) <> 'object' then
    return 'must be an object whose values are text';
  end if;
  if (select count(*) from jsonb_object_keys(v_tags)) > 64 then
    return 'are more than 64';
  end if;
  select t.key into v_key from jsonb_each(v_tags) t
  where t.key !~ '^[a-z][a-z0-9_]*[.][a-z0-9_][a-z0-9_.]*$' limit 1;
  if found then
    return format('the key %s is not of the form team.field (lower case letters, digits, _)',
                  to_jsonb(v_key)::text);
  end if;
  select t.key into v_key from jsonb_each(v_tags) t
  where jsonb_typeof(t.value) <> 'string' or octet_length(t.value #>> '{}') > 1024 limit 1;
  if found then
    return format('the value of %s must be text of at most 1024 bytes', v_key);
  end if;
  return null;
end;
$$;
