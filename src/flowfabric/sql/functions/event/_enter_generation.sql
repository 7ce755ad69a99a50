-- Return the generation to write events in, and lock it until the transaction ends. If the
-- partition has moved to this node and nothing was written here yet, begin a new generation.
--
-- A partition without a row in ff.event_generation is in generation 0, and nothing is locked. This
-- is the usual case on one server.
--
-- Writers do not wait for each other. A writer waits only while another transaction begins a
-- generation. A move of the partition waits for the writers.
drop function if exists ff._enter_generation;
create function ff._enter_generation(p_partition_key smallint)
returns integer
language plpgsql
as $$
declare
  v_generation integer;
  v_node_id    integer;
  v_here       integer;
begin
  select g.generation, g.node_id into v_generation, v_node_id
  from ff.event_generation g
  where g.partition_key = p_partition_key
  for key share;
  if v_node_id is null then
    return coalesce(v_generation, 0);
  end if;
  v_here := ff._node_id();
  if v_node_id = v_here then
    return v_generation;
  end if;
  update ff.event_generation g set generation = g.generation + 1, node_id = v_here
  where g.partition_key = p_partition_key and g.node_id <> v_here
  returning g.generation into v_generation;
  if not found then
    -- Another transaction began the generation while this one waited.
    select g.generation into v_generation
    from ff.event_generation g
    where g.partition_key = p_partition_key
    for key share;
  end if;
  return v_generation;
end;
$$;
