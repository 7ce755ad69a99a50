-- Tell whether the login may act across namespaces. The login must be a member of
-- flowfabric_operator, or of the role that owns the schema. It must also not be bound to a
-- namespace.
drop function if exists ff._is_operator;
create function ff._is_operator()
returns boolean
language plpgsql
stable
as $$
begin
  return not exists (select from ff.namespace_grant g where g.login = session_user)
    and exists (
      select from pg_roles r
      where (r.rolname = 'flowfabric_operator'
             or r.oid = (select n.nspowner from pg_namespace n where n.nspname = 'ff'))
        and pg_has_role(session_user, r.oid, 'member'));
end;
$$;
