-- Return the generation in which events are written now. If the partition has moved to this node
-- and nothing was written here yet, begin the new generation.
--
-- Older generations are complete. So a reader needs a snapshot only for events of the present
-- generation.
drop function if exists ff._find_generation;
create function ff._find_generation(p_partition_key smallint)
returns integer
language plpgsql
as $$
declare
  v_generation integer;
  v_node_id    integer;
begin
  select g.generation, g.node_id into v_generation, v_node_id
  from ff.event_generation g
  where g.partition_key = p_partition_key;
  if v_node_id is null then
    return coalesce(v_generation, 0);
  end if;
  if v_node_id = ff._node_id() then
    return v_generation;
  end if;
  return ff._enter_generation(p_partition_key);
end;
$$;
