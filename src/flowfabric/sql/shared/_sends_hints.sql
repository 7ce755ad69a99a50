-- Tell whether ff.submit_json and ff.submit_flow send hints themselves. If the tables are
-- distributed, the client sends the hints instead: NOTIFY would reach only the node of the
-- partition, and a two-phase commit refuses NOTIFY.
drop function if exists ff._sends_hints;
create function ff._sends_hints()
returns boolean
language plpgsql
immutable
as $$
begin
  return true;
end;
$$;

-- When distributed
drop function if exists ff._sends_hints;
create function ff._sends_hints()
returns boolean
language plpgsql
immutable
as $$
begin
  return false;
end;
$$;
