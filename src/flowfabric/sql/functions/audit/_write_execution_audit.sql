-- Record an act of an operator on one execution. p_row is the execution before the act.
drop function if exists ff._write_execution_audit;
create function ff._write_execution_audit(
  p_partition_key smallint,
  p_row           ff.execution,
  p_actor         text,
  p_act           text,
  p_reason        text,
  p_after         jsonb)
returns void
language plpgsql
as $$
begin
  perform ff._write_audit(
    p_row.namespace, p_actor, p_act, format('{fp:%s}:%s', p_partition_key, p_row.execution_id),
    p_reason,
    jsonb_build_object('state', p_row.public_state, 'version', p_row.version),
    p_after);
end;
$$;
