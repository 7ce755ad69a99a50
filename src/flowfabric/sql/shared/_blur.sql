-- An id next to another one, for the position of a list: it tells when that one was made, and leaves
-- the 64 bits out that nobody can guess.
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
