-- Begin a new generation of events in a partition, and return its number. No other function calls
-- this one. It is needed before the tables are distributed, and after a dump was restored into
-- another server.
--
-- p_node_id is the node of the cluster that stores the partition; null if the tables are not
-- distributed. Call this function while nothing writes. It does not wait for writers of a partition
-- that has no row in ff.event_generation yet.
drop function if exists ff._raise_generation;
create function ff._raise_generation(p_partition_key smallint, p_node_id integer default null)
returns integer
language plpgsql
as $$
declare
  v_generation integer;
begin
  perform from ff.event_generation g where g.partition_key = p_partition_key for update;
  insert into ff.event_generation as g (partition_key, generation, node_id)
  values (p_partition_key, 1, p_node_id)
  on conflict (partition_key) do update
    set generation = g.generation + 1, node_id = excluded.node_id
  returning g.generation into v_generation;
  return v_generation;
end;
$$;
