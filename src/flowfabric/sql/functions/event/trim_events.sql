-- Delete the events of trimmed executions when their time is over.
--
-- If an execution with the same id exists again, its events stay until its own end.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    rows of ff.event_trim, skipping locked ones
-- Replay:   a second call finds nothing left to do
-- Rights:   app
drop function if exists ff.trim_events;
create function ff.trim_events(p_partition_key smallint, p_limit integer default 500)
returns table (handled integer, due_in interval)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now        timestamptz := ff.now();
  v_generation integer;
  v_xid        xid8;
begin
  perform ff._check_pass(p_limit);
  with due as materialized (
    select p_partition_key as pk, t.due_at, t.execution_id
    from ff.event_trim t
    where t.partition_key = p_partition_key and t.due_at <= v_now
    order by t.due_at, t.execution_id
    limit p_limit
    for update skip locked
  ),
  done as (
    delete from ff.event_trim t
    using due d
    where t.partition_key = d.pk and t.due_at = d.due_at and t.execution_id = d.execution_id
    returning t.execution_id
  ),
  alone as materialized (
    select d.pk, d.execution_id
    from due d
    where not exists (
      select from ff.execution e
      where e.partition_key = d.pk and e.execution_id = d.execution_id)
    offset 0
  ),
  events as (
    delete from ff.event v
    using alone a
    where v.partition_key = a.pk and v.execution_id = a.execution_id
      -- The cancel event of a flow is deleted with the flow, even if an execution had the same id.
      and case when v.kind <> 'flow_cancel_requested' then true else not exists (
            select from ff.flow f
            where f.partition_key = p_partition_key and f.flow_id = v.execution_id
            offset 0) end
    returning v.generation, v.xid
  )
  select (select count(*) from done), g.generation,
         (select max(v.xid) from events v where v.generation = g.generation)
    into handled, v_generation, v_xid
  from (select max(v.generation) as generation from events v) g;
  perform ff._raise_trim_mark(p_partition_key, v_generation, v_xid);
  due_in := (
    select t.due_at - v_now from ff.event_trim t
    where t.partition_key = p_partition_key and t.due_at > v_now
    order by t.due_at limit 1);
  return next;
end;
$$;
