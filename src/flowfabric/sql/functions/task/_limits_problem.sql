-- Check the limits of a task, in the form of ff.register_tasks. Return the field and the text of
-- the first problem, or null.
drop function if exists ff._limits_problem;
create function ff._limits_problem(p_limits jsonb)
returns text[]
language plpgsql
immutable
as $$
declare
  v_limit jsonb;
  v_known text[] := '{}';
  v_name  text;
begin
  if p_limits is null then
    return null;
  end if;
  if jsonb_typeof(p_limits) <> 'array' or jsonb_array_length(p_limits) > 20 then
    return array['limits', 'must be a list of at most 20 objects'];
  end if;
  for v_limit in select e.value from jsonb_array_elements(p_limits) e loop
    if jsonb_typeof(v_limit) <> 'object'
       or v_limit - array['kind', 'name', 'is_keyed', 'argument'] <> '{}' then
      return array['limits', 'must be objects with kind, name, is_keyed and argument'];
    end if;
    if coalesce(v_limit ->> 'kind' not in ('quota', 'budget'), true) then
      return array['limits.kind', 'must be quota or budget'];
    end if;
    v_name := v_limit ->> 'name';
    if jsonb_typeof(v_limit -> 'name') is distinct from 'string' or v_name = ''
       or octet_length(v_name) > 256 or v_name ~ E'[\x01-\x20\x7f]' then
      return array['limits.name', 'must be 1 to 256 bytes without whitespace or control characters'];
    end if;
    if jsonb_typeof(v_limit -> 'is_keyed') is distinct from 'boolean' then
      return array['limits.is_keyed', 'must be true or false'];
    end if;
    if jsonb_typeof(v_limit -> 'argument') not in ('string', 'null')
       or octet_length(v_limit ->> 'argument') not between 1 and 256 then
      return array['limits.argument', 'must be the name of an argument, or null'];
    end if;
    v_name := concat_ws(' ', v_limit ->> 'kind', v_name);
    if v_name = any (v_known) then
      return array['limits.name', 'must be different for each quota, and for each budget'];
    end if;
    v_known := v_known || v_name;
  end loop;
  return null;
end;
$$;
