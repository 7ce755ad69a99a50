-- Return the number of the slice in which starts are counted now. A slice is a sixtieth of the
-- window of a rate. p_base is the slice in which the gate counted last.
--
-- If the clock went back, starts are still counted in p_base. But if p_base is more than 62 slices
-- ahead of the clock, the clock was wrong when p_base was stored. In that case starts are counted
-- in the slice of p_now.
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
