-- Prepare the reclaim of an execution. Return null if it can be reclaimed, else not_reclaimable or
-- reclaim_cap_exceeded. A member of a cancelled flow is not reclaimable. The caller has locked the
-- execution.
--
-- The call can change the execution. An expired lease is marked as expired (T19). An execution that
-- was reclaimed too often, or crashed three times while it ran alone, ends (T22). For such an
-- execution, this call and later calls return reclaim_cap_exceeded.
drop function if exists ff._prepare_reclaim;
create function ff._prepare_reclaim(
  p_partition_key smallint,
  p_row           ff.execution,
  p_now           timestamptz
)
returns text
language plpgsql
as $$
declare
  v_is_expired constant boolean := p_row.ownership = 'leased' and p_row.lease_expires_at <= p_now;
begin
  if (p_row.phase, p_row.cause) = ('terminal', 'exceed_reclaims') then
    return 'reclaim_cap_exceeded';
  elsif p_row.phase <> 'active' or (p_row.ownership = 'leased' and not v_is_expired) then
    return 'not_reclaimable';
  end if;
  if v_is_expired then
    perform ff._expire_leases(p_partition_key, array[p_row.execution_id], p_now);
    perform ff._hint_ready(p_partition_key, array[p_row.route_id]);
  end if;
  if ff._is_flow_cancelled(p_partition_key, p_row.flow_id) then
    return 'not_reclaimable';
  end if;
  -- Read the row again: if the execution ran alone, marking its lease has counted a crash.
  if exists (
    select from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_row.execution_id
      and case when e.reclaim_count - e.company_count >= e.max_reclaims or e.lone_crash_count >= 3
            then true else false end) then
    perform ff._fail_over_reclaim_limit(p_partition_key, array[p_row.execution_id], p_now);
    return 'reclaim_cap_exceeded';
  end if;
  return null;
end;
$$;
