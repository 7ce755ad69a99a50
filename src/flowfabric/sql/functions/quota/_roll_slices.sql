-- Move the counts of starts forward to slice p_slice, and return them. A slice is a sixtieth of the
-- window of a rate. Only the last 62 slices are kept. Slice n has its count at position n % 62 + 1.
-- p_base is the newest slice in p_slices.
--
-- If p_base is ahead of p_slice, the clock went back. In that case the counts stay as they are. But
-- if p_base is more than 62 slices ahead, the clock was wrong earlier, and all starts are counted
-- in p_slice.
drop function if exists ff._roll_slices;
create function ff._roll_slices(p_slices integer[], p_base bigint, p_slice bigint)
returns integer[]
language plpgsql
immutable
as $$
declare
  v_slices integer[] := p_slices;
begin
  if p_slices is null or p_slice - p_base >= 62 then
    return array_fill(0, array[62]);
  end if;
  if p_base - p_slice > 62 then
    v_slices := array_fill(0, array[62]);
    v_slices[(p_slice % 62)::integer + 1] := (select sum(s.n) from unnest(p_slices) s(n));
    return v_slices;
  end if;
  for v_step in 1..(p_slice - p_base)::integer loop
    v_slices[((p_base + v_step) % 62)::integer + 1] := 0;
  end loop;
  return v_slices;
end;
$$;
