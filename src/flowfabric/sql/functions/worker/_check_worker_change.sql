-- Refuse a change of a worker if the caller does not give the namespace, the name of the worker
-- instance and a reason. Also refuse a malformed actor or reason.
drop function if exists ff._check_worker_change;
create function ff._check_worker_change(
  p_namespace          text,
  p_worker_instance_id text,
  p_reason             text,
  p_actor              text
)
returns void
language plpgsql
immutable
as $$
begin
  if p_namespace is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'namespace', 'problem', 'must be given; empty means a worker of all namespaces'));
  end if;
  if p_worker_instance_id is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'worker_instance_id', 'problem', 'must be given'));
  end if;
  if p_reason is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'reason', 'problem', 'must be given'));
  end if;
  perform ff._check_actor_and_reason(p_actor, p_reason);
end;
$$;
