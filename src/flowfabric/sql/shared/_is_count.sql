-- Tell whether a JSON value is a whole number from 0 to 1 000 000.
drop function if exists ff._is_count;
create function ff._is_count(p_value jsonb)
returns boolean
language plpgsql
immutable
as $$
begin
  if jsonb_typeof(p_value) is distinct from 'number' then
    return false;
  end if;
  return p_value::text::numeric between 0 and 1000000 and p_value::text::numeric % 1 = 0;
end;
$$;
