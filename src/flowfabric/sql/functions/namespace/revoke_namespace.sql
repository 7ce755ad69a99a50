-- Remove the binding of a login to a namespace. This widens the access of the login: without a
-- binding, it can use every namespace.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    the row of the login
-- Repeat:   `unchanged`
-- Rights:   operator
drop function if exists ff.revoke_namespace;
create function ff.revoke_namespace(p_login text)
returns table (outcome text, login text, namespace text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_namespace text;
begin
  perform ff._check_operator('revoke_namespace');
  delete from ff.namespace_grant g where g.login = p_login returning g.namespace into v_namespace;
  if v_namespace is not null then
    perform ff._write_audit(
      v_namespace, null, 'revoke_namespace', p_login, null,
      jsonb_build_object('namespace', v_namespace));
  end if;
  return query
  select case when v_namespace is null then 'unchanged' else 'revoked' end, p_login, v_namespace;
end;
$$;
