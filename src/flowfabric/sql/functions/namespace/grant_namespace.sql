-- Bind a login to one namespace, so that it can use no other.
--
-- The login is the role that connects (session_user); memberships in other roles do not matter. An
-- operator cannot be bound.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden
-- Locks:    the row of the login
-- Repeat:   `unchanged`
-- Rights:   operator
drop function if exists ff.grant_namespace;
create function ff.grant_namespace(p_login text, p_namespace text, p_actor text default null)
returns table (outcome text, login text, namespace text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     constant timestamptz := ff.now();
  v_field   text;
  v_problem text;
  v_role    oid;
  v_before  text;
begin
  perform ff._check_operator('grant_namespace');
  perform ff._check_actor_and_reason(p_actor, null);
  select r.oid into v_role from pg_roles r where r.rolname = p_login;
  if v_role is null then
    v_field := 'login'; v_problem := 'there is no such role: create it first';
  elsif p_namespace is null or p_namespace !~ E'^[^\x01-\x20\x7f]+$'
        or octet_length(p_namespace) > 256 then
    v_field := 'namespace';
    v_problem := 'must be 1 to 256 bytes without whitespace or control characters';
  elsif exists (
      select from pg_roles r
      where (r.rolname = 'flowfabric_operator'
             or r.oid = (select n.nspowner from pg_namespace n where n.nspname = 'ff'))
        and pg_has_role(v_role, r.oid, 'member')) then
    v_field := 'login'; v_problem := 'is an operator: an operator cannot be bound to a namespace';
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_field, 'problem', v_problem));
  end if;
  select g.namespace into v_before from ff.namespace_grant g where g.login = p_login;
  insert into ff.namespace_grant as g (login, namespace, granted_at, granted_by)
  values (p_login, p_namespace, v_now, coalesce(p_actor, session_user))
  on conflict (login) do update
    set namespace = excluded.namespace, granted_at = excluded.granted_at,
        granted_by = excluded.granted_by
    where g.namespace <> excluded.namespace;
  if v_before is distinct from p_namespace then
    perform ff._write_audit(
      p_namespace, p_actor, 'grant_namespace', p_login, null,
      jsonb_build_object('namespace', v_before), jsonb_build_object('namespace', p_namespace));
  end if;
  return query select case when v_before is distinct from p_namespace then 'granted' else 'unchanged' end, p_login, p_namespace;
end;
$$;
