-- Refuse a namespace that the caller may not use. Every public function with a namespace calls this
-- first.
--
-- A login that is bound to a namespace (ff.namespace_grant) may use only that namespace. Any other
-- login may use every namespace. A null namespace means all namespaces together; only an operator
-- may pass null. The login is session_user, which `set role` does not change.
drop function if exists ff._check_namespace;
create function ff._check_namespace(p_namespace text)
returns void
language plpgsql
stable
as $$
declare
  v_bound text;
begin
  select g.namespace into v_bound from ff.namespace_grant g where g.login = session_user;
  if v_bound is not null then
    if p_namespace is distinct from v_bound then
      perform ff._refuse('WF501', 'forbidden', jsonb_build_object(
        'namespace', p_namespace, 'bound_to', v_bound,
        'problem', 'this login belongs to another namespace'));
    end if;
  elsif p_namespace is null and not ff._is_operator() then
    perform ff._refuse('WF501', 'forbidden', jsonb_build_object(
      'problem', 'only flowfabric_operator may use all namespaces at once; name one'));
  end if;
end;
$$;
