-- Return the number of this node in the cluster. Call it only if the tables are distributed.
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
