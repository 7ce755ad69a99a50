-- Return a name that identifies this database among all databases. All nodes of a cluster give the
-- same answer.
drop function if exists ff._identify_database;
create function ff._identify_database()
returns text
language plpgsql
stable
as $$
begin
  return (
    select format('%s/%s', to_hex(s.system_identifier), d.oid)
    from pg_control_system() s, pg_database d
    where d.datname = current_database());
end;
$$;

-- When distributed
drop function if exists ff._identify_database;
create function ff._identify_database()
returns text
language plpgsql
stable
as $$
begin
  return (select m.value from ff.meta m where m.name = 'installation_id');
end;
$$;
