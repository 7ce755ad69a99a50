-- Stamp the signals that were stored without a lock, so that waits can take them. A signal by name
-- reaches the open waitpoint of that name, also if it is newer than the signal. The caller holds the
-- row locks of the executions, and judges their waits in a later statement.
drop function if exists ff._notice_signals;
create function ff._notice_signals(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_now           timestamptz
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  if not exists (
       select from ff.signal_inbox b
       where b.partition_key = p_partition_key and b.execution_id = any (p_execution_ids)) then
    return;
  end if;
  with gone as (
    delete from ff.signal_inbox b
    where b.partition_key = p_partition_key and b.execution_id = any (p_execution_ids)
    returning b.execution_id, b.signal_id
  )
  update ff.signal g set
    noticed_at = greatest(p_now, g.accepted_at),
    effect = 'buffered',
    waitpoint_id = coalesce(g.waitpoint_id, (
      select w.waitpoint_id from ff.waitpoint w
      where w.partition_key = p_partition_key and w.execution_id = g.execution_id
        and w.key = g.name and w.closed_at is null and w.approval_id is null
        and (w.activated_at is not null or w.expires_at is null or w.expires_at > p_now)
        and (g.dedup_key is null or not exists (
          select from ff.signal y
          where y.partition_key = p_partition_key and y.execution_id = g.execution_id
            and y.name = g.name and y.waitpoint_id = w.waitpoint_id
            and y.dedup_key = g.dedup_key
          offset 0))
      order by w.created_at, w.waitpoint_id
      limit 1))
  from gone b
  where g.partition_key = p_partition_key and g.execution_id = b.execution_id
    and g.signal_id = b.signal_id and g.noticed_at is null;
end;
$$;
