-- Return whether the engine sends hints of submits. Where the tables are distributed the client does:
-- NOTIFY fires only on the node of the partition, and a commit in two phases does not take it.
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
