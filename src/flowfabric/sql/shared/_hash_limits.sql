-- Return the number of the advisory lock that guards the limits of a task.
drop function if exists ff._hash_limits;
create function ff._hash_limits(p_namespace text, p_task text)
returns bigint
language plpgsql
immutable
as $$
begin
  return hashtextextended(p_namespace || ' ' || p_task, 7304261);
end;
$$;
