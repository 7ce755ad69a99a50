-- Add p_starts to the starts that a gate with a rate has counted. If the gate then has no room,
-- store the time at which it has room again. The caller has locked the gate.
drop function if exists ff._count_starts;
create function ff._count_starts(
  p_partition_key smallint,
  p_gate_id       bigint,
  p_starts        integer,
  p_now           timestamptz
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_gate   ff.gate;
  v_slice  bigint;
  v_slices integer[];
  v_oldest bigint;
begin
  select g.* into v_gate from ff.gate g
  where g.partition_key = p_partition_key and g.gate_id = p_gate_id;
  v_slice := ff._newest_slice(v_gate.slice_base, v_gate.rate_window, p_now);
  v_slices := ff._roll_slices(v_gate.slices, v_gate.slice_base, v_slice);
  v_slices[(v_slice % 62)::integer + 1] := v_slices[(v_slice % 62)::integer + 1] + p_starts;
  -- No other execution gets a reserved start.
  if (select sum(s.n) from unnest(v_slices) s(n))
     >= v_gate.rate - (v_gate.start_for is not null)::integer then
    for v_age in reverse 61..0 loop
      if v_slices[((v_slice - v_age) % 62)::integer + 1] > 0 then
        v_oldest := v_slice - v_age;
        exit;
      end if;
    end loop;
  end if;
  update ff.gate g set
    slices = v_slices,
    slice_base = v_slice,
    opens_at = case when v_oldest is not null then to_timestamp(
      (v_oldest + 62) * extract(epoch from g.rate_window) / 60) end
  where g.partition_key = p_partition_key and g.gate_id = p_gate_id;
end;
$$;
