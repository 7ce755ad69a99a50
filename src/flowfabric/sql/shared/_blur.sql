-- Return the lowest or highest id that shares the first 64 bits of an id, as the position of a list:
-- it reveals the creation time of the id, but not the 64 bits that nobody can guess.
drop function if exists ff._blur;
create function ff._blur(p_id uuid, p_is_above boolean)
returns uuid
language plpgsql
immutable
as $$
begin
  return left(p_id::text, 19)
    || case when p_is_above then 'ffff-ffffffffffff' else '0000-000000000000' end;
end;
$$;
