-- Tell whether an id is null or the nil uuid. No row may have the nil uuid, because every scan over
-- ids starts after it.
drop function if exists ff._is_nil_id;
create function ff._is_nil_id(p_id uuid)
returns boolean
language plpgsql
immutable
as $$
begin
  return p_id is null or p_id = '00000000-0000-0000-0000-000000000000';
end;
$$;
