-- Refuse the call if the login is not an operator.
drop function if exists ff._check_operator;
create function ff._check_operator(p_operation text)
returns void
language plpgsql
stable
as $$
begin
  if not ff._is_operator() then
    perform ff._refuse('WF501', 'forbidden', jsonb_build_object(
      'operation', p_operation, 'problem', 'needs the role flowfabric_operator'));
  end if;
end;
$$;
