-- Return the namespace that the login is bound to, or null. If a bound login runs a reconciler, the
-- reconciler handles only the gates and budgets of this namespace. Otherwise the login could lock
-- gates and budgets of other namespaces by keeping its transaction open.
drop function if exists ff._read_bound_namespace;
create function ff._read_bound_namespace()
returns text
language plpgsql
stable
as $$
begin
  return (select g.namespace from ff.namespace_grant g where g.login = session_user);
end;
$$;
