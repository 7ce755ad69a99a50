-- Delete executions that have ended and all they own. The caller holds the row locks.
--
-- Events stay for the floor: those of an execution that ended longer ago go with it, the others
-- are written down to go later. Keys stay until they expire.
drop function if exists ff._trim_executions;
create function ff._trim_executions(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_event_floor   interval,
  p_now           timestamptz
)
returns void
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_xid xid8;
begin
  with item as materialized (
    select p_partition_key as pk, u.execution_id
    from unnest(p_execution_ids) u(execution_id)
    offset 0
  ),
  executions as (
    delete from ff.execution e
    using item i
    where e.partition_key = i.pk and e.execution_id = i.execution_id
    returning e.execution_id, e.terminal_at
  ),
  bodies as (
    delete from ff.execution_body b
    using item i
    where b.partition_key = i.pk and b.execution_id = i.execution_id
  ),
  attempts as (
    delete from ff.attempt a
    using item i
    where a.partition_key = i.pk and a.execution_id = i.execution_id
  ),
  steps as (
    delete from ff.step s
    using item i
    where s.partition_key = i.pk and s.execution_id = i.execution_id
  ),
  waits as (
    delete from ff.run_wait w
    using item i
    where w.partition_key = i.pk and w.waiter_id = i.execution_id
  ),
  grants as (
    delete from ff.grant g
    using item i
    where g.partition_key = i.pk and g.execution_id = i.execution_id
  ),
  kept as (
    insert into ff.event_trim (partition_key, due_at, execution_id)
    select p_partition_key, x.terminal_at + p_event_floor, x.execution_id
    from executions x
    where x.terminal_at + p_event_floor > p_now
    on conflict do nothing
  ),
  old as materialized (
    select p_partition_key as pk, x.execution_id
    from executions x
    where x.terminal_at + p_event_floor <= p_now
    offset 0
  ),
  events as (
    delete from ff.event v
    using old o
    where v.partition_key = o.pk and v.execution_id = o.execution_id
    returning v.xid
  )
  select max(v.xid) into v_xid from events v;
  perform ff._trimmed_to(p_partition_key, v_xid);
end;
$$;
