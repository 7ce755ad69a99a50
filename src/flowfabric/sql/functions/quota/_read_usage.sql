-- Read what runs under a gate in one partition, with and without the releases that no claim has added,
-- and what has started within the window of its rate. Zeros if the partition has no such gate.
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
         g.running - coalesce((
           select sum(r.slots) from ff.gate_release r
           where r.partition_key = p_partition_key and r.gate_id = p_gate_id), 0),
         case when g.slices is not null then (
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
