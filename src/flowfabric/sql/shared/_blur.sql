-- Return an id near p_id, for use as a position in a list. The new id keeps the first half of p_id,
-- which contains the time of creation. The second half becomes all ones if p_is_above is true,
-- otherwise all zeros. So the position does not reveal an id that belongs to another namespace.
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
