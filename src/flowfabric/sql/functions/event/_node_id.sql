-- Return the number of this node of the cluster. Called only for partitions of distributed tables.
drop function if exists ff._node_id;
create function ff._node_id()
returns integer
language plpgsql
stable
as $$
begin
  return (select g.groupid from pg_catalog.pg_dist_local_group g);
end;
$$;
