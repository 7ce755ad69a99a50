-- Return the lowest id that can have been made at an instant. Most ids begin with their time of
-- creation, which is 48 bits long and counts milliseconds.
drop function if exists ff._lowest_id_at;
create function ff._lowest_id_at(p_at timestamptz)
returns uuid
language plpgsql
immutable
as $$
begin
  return (lpad(to_hex(greatest((extract(epoch from p_at) * 1000)::bigint, 0)), 12, '0')
          || repeat('0', 20))::uuid;
end;
$$;
