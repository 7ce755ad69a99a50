-- Lock one candidate of a claim, and check it under the lock. Returns whether it can still be
-- claimed (is_open), must be ended (is_over), had an attempt before (has_past), and is under a
-- quota or a budget (is_gated). Returns null if another transaction has locked the row, or if the
-- row is gone.
drop function if exists ff._lock_candidate;
create function ff._lock_candidate(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_now           timestamptz
)
returns ff.candidate
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_row ff.candidate;
begin
  select ((e.phase = 'runnable' and (e.eligibility = 'eligible_now' or e.line_id is not null))
           or (e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
               and e.reclaim_at is null))
         and case when e.flow_id is null then true else coalesce((
               select f.cancel_policy = 'flow_only' from ff.flow f
               where f.partition_key = p_partition_key and f.flow_id = e.flow_id), true) end,
         e.phase = 'active' and (e.reclaim_count - e.company_count >= e.max_reclaims
                                 or e.lone_crash_count >= 3)
         or coalesce(e.deadline_at <= p_now, false),
         e.total_attempt_count > 0,
         num_nonnulls(e.quota_ids, e.budget_ids) > 0
    into v_row
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
  for no key update skip locked;
  return v_row;
end;
$$;
