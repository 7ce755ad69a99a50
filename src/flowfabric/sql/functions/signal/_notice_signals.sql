-- Notice the signals in the inbox of executions, so that waits can take them. The caller has locked
-- the executions, and judges their waits in a later statement.
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
    effect = 'buffered'
  from gone b
  where g.partition_key = p_partition_key and g.execution_id = b.execution_id
    and g.signal_id = b.signal_id and g.noticed_at is null;
end;
$$;
