-- Return how deep objects and lists are nested in a value: 0 for a number or a text, 1 for a list
-- of numbers, 2 for a list of such lists.
drop function if exists ff._json_depth;
create function ff._json_depth(p_value jsonb)
returns integer
language plpgsql
immutable
as $$
begin
  return case jsonb_typeof(p_value)
    when 'object' then 1 + coalesce(
      (select max(ff._json_depth(e.value)) from jsonb_each(p_value) e), 0)
    when 'array' then 1 + coalesce(
      (select max(ff._json_depth(e.value)) from jsonb_array_elements(p_value) e), 0)
    else 0 end;
end;
$$;
