-- Return the number of the slice in which starts are counted now. A slice is a sixtieth of the
-- window of a rate. If the clock went back, starts are still counted in the newest slice. But if
-- the newest slice is more than a window ahead, the clock was wrong earlier, and starts are counted
-- in the current slice.
drop function if exists ff._newest_slice;
create function ff._newest_slice(p_base bigint, p_rate_window interval, p_now timestamptz)
returns bigint
language plpgsql
immutable
as $$
declare
  v_slice constant bigint :=
    floor(extract(epoch from p_now) * 60 / extract(epoch from p_rate_window));
begin
  return case when p_base - v_slice > 62 then v_slice else greatest(v_slice, p_base) end;
end;
$$;
