-- Close waitpoints of an execution: their tokens are dead from now on. Signals that came by name and
-- were not taken are free again for waits by name. The caller holds the row lock of the execution.
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
  update ff.signal g set waitpoint_id = null
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id
    and g.waitpoint_id = any (p_waitpoint_ids) and g.taken_at is null
    and case when g.is_by_token or g.category = 'approval' then false else true end
    and case when g.dedup_key is null then true else not exists (
          select from ff.signal y
          where y.partition_key = p_partition_key and y.execution_id = p_execution_id
            and y.name = g.name and y.waitpoint_id is null and y.dedup_key = g.dedup_key
          offset 0) end;
  return true;
end;
$$;
