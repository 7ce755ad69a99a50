-- Delete the events of trimmed executions when the retention of the events is over.
--
-- If an execution with the same id exists again, the events stay until that execution is trimmed.
--
-- If a subscription has not acknowledged the events, the deletion is put off by an hour at a time.
-- The events are deleted when the subscription has acknowledged them, or when the subscription has
-- kept them as long as it can (ff.subscription.keep).
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    rows of ff.event_trim, skipping locked ones; then the row of the partition in
--           ff.trim_mark, waiting up to 2 s
-- Repeat:   a second call does what p_limit or a lock has left undone
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
  v_due        record;
  v_read       record;
  v_needed     uuid[];
  v_lost       uuid[];
begin
  perform ff._check_pass(p_limit);
  select array_agg(d.due_at) as due_ats, array_agg(d.execution_id) as ids,
         array_agg(coalesce(d.first_due_at, d.due_at)) as first_ats
    into v_due
  from (
    select t.due_at, t.execution_id, t.first_due_at
    from ff.event_trim t
    where t.partition_key = p_partition_key and t.due_at <= v_now
    order by t.due_at, t.execution_id
    limit p_limit
    for update skip locked
  ) d;
  v_read := ff._read_needed(p_partition_key, v_due.ids, v_due.first_ats, v_now);
  v_needed := v_read.needed;
  if v_needed <> '{}' then
    with put_off as (
      delete from ff.event_trim t
      using (
        select p_partition_key as pk, u.due_at, u.id
        from unnest(v_due.due_ats, v_due.ids) u(due_at, id)
        where u.id = any (v_needed)
        offset 0) d
      where t.partition_key = d.pk and t.due_at = d.due_at and t.execution_id = d.id
      returning t.execution_id, coalesce(t.first_due_at, t.due_at) as first_due_at
    )
    insert into ff.event_trim (partition_key, due_at, execution_id, first_due_at)
    select p_partition_key, v_now + interval '1 hour', p.execution_id, min(p.first_due_at)
    from put_off p
    group by p.execution_id
    on conflict do nothing;
  end if;
  with due as materialized (
    select p_partition_key as pk, u.due_at, u.id as execution_id
    from unnest(v_due.due_ats, v_due.ids) u(due_at, id)
    where u.id <> all (v_needed)
    offset 0
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
    returning v.generation, v.xid, v.execution_id
  )
  select (select count(*) from done), g.generation,
         (select max(v.xid) from events v where v.generation = g.generation),
         array(select v.execution_id from events v where v.execution_id = any (v_read.lost_ids))
    into handled, v_generation, v_xid, v_lost
  from (select max(v.generation) as generation from events v) g;
  perform ff._raise_trim_mark(p_partition_key, v_generation, v_xid, array(
    select u.key from unnest(v_read.lost_ids, v_read.lost_by) u(id, key)
    where u.id = any (v_lost)), v_now);
  handled := handled + cardinality(v_needed);
  due_in := (
    select t.due_at - v_now from ff.event_trim t
    where t.partition_key = p_partition_key and t.due_at > v_now
    order by t.due_at limit 1);
  return next;
end;
$$;
