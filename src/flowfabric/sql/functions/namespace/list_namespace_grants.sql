-- List all namespace grants: every login that is bound to a namespace, with that namespace.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   operator
drop function if exists ff.list_namespace_grants;
create function ff.list_namespace_grants()
returns table (login text, namespace text, granted_at timestamptz, granted_by text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_operator('list_namespace_grants');
  return query
  select g.login::text, g.namespace, g.granted_at, g.granted_by
  from ff.namespace_grant g order by g.login;
end;
$$;
