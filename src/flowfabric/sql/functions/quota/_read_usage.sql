-- Read how much of a gate is used in one partition. All numbers are 0 if the partition does not
-- have the gate.
--
-- `running` is how many slots are taken, plus one if a slot is reserved. `counted` is the counter
-- of the gate: it still includes slots that were given back but not yet subtracted. `started` is
-- how many starts the window of the rate contains, plus one if a start is reserved.
drop function if exists ff._read_usage;
create function ff._read_usage(
  p_partition_key smallint,
  p_gate_id       bigint,
  p_now           timestamptz,
  out counted     integer,
  out running     integer,
  out started     integer
)
returns record
language plpgsql
as $$
begin
  select g.running,
         -- A reserved slot counts as used. Otherwise it could be moved away with an unused share.
         g.running + (g.reserved_for is not null)::integer - coalesce((
           select sum(r.slots) from ff.gate_release r
           where r.partition_key = p_partition_key and r.gate_id = p_gate_id), 0),
         (g.start_for is not null)::integer + case when g.slices is null then 0 else (
           select sum(c.n) from unnest(ff._roll_slices(
             g.slices, g.slice_base,
             ff._newest_slice(g.slice_base, g.rate_window, p_now))) c(n)) end
    into counted, running, started
  from ff.gate g where g.partition_key = p_partition_key and g.gate_id = p_gate_id;
  counted := coalesce(counted, 0);
  running := coalesce(running, 0);
  started := coalesce(started, 0);
end;
$$;
