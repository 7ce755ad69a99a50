-- Return an id near p_id, for use as a position in a list. The new id keeps the time of creation
-- but not the 64 random bits. So the position reveals no execution of another namespace.
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
