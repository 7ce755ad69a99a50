-- Note that a wait for waitpoints is open: they do not expire by themselves any more, and take values
-- of the type that the wait has declared. The caller holds the row lock of the execution.
drop function if exists ff._activate_waitpoints;
create function ff._activate_waitpoints(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_waitpoint_ids uuid[],
  p_condition     jsonb,
  p_now           timestamptz
)
returns void
language plpgsql
as $$
begin
  update ff.waitpoint w set
    activated_at = p_now,
    schema_id = (jsonb_path_query_first(
      p_condition, 'strict $.** ? (@.waitpoint == $id).schema',
      jsonb_build_object('id', w.waitpoint_id), silent => true) #>> '{}')::bigint
  where w.partition_key = p_partition_key and w.execution_id = p_execution_id
    and w.waitpoint_id = any (p_waitpoint_ids) and w.closed_at is null
    and w.activated_at is null;
end;
$$;
