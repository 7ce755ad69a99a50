-- Close waitpoints of an execution: their tokens are dead from now on. The caller holds the row lock
-- of the execution.
drop function if exists ff._close_waitpoints;
create function ff._close_waitpoints(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_waitpoint_ids uuid[],
  p_reason        text,
  p_now           timestamptz
)
returns void
language plpgsql
as $$
begin
  update ff.waitpoint w set
    closed_at = greatest(p_now, w.created_at),
    close_reason = p_reason
  where w.partition_key = p_partition_key and w.execution_id = p_execution_id
    and w.waitpoint_id = any (p_waitpoint_ids) and w.closed_at is null;
end;
$$;
