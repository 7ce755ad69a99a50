-- Close waitpoints of an execution. Their tokens are then no longer accepted. If an open wait of
-- the execution can no longer be answered, the wait times out now. Returns whether at least one of
-- the waitpoints was open before the call. The caller has locked the execution.
drop function if exists ff._close_waitpoints;
create function ff._close_waitpoints(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_waitpoint_ids uuid[],
  p_reason        text,
  p_now           timestamptz
)
returns boolean
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  update ff.waitpoint w set
    closed_at = greatest(p_now, w.created_at),
    close_reason = p_reason
  where w.partition_key = p_partition_key and w.execution_id = p_execution_id
    and w.waitpoint_id = any (p_waitpoint_ids) and w.closed_at is null;
  if not found then
    return false;
  end if;
  perform ff._time_out_unanswerable_waits(
    p_partition_key, p_execution_id, p_waitpoint_ids, p_now);
  return true;
end;
$$;
