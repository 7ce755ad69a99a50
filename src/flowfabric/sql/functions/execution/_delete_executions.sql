-- Delete ended executions with all their rows. The caller has locked the executions.
--
-- Events are kept for p_event_floor after the end of their execution. If that time is over and no
-- subscription needs the events, they are deleted with the execution. Otherwise ff.event_trim
-- records when the events can be deleted.
--
-- Idempotency keys stay until they expire. If an execution is a member of a flow, its edges, its
-- groups and its kept results are deleted too. The flow is deleted with its last member.
drop function if exists ff._delete_executions;
create function ff._delete_executions(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_event_floor   interval,
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
declare
  v_generation integer;
  v_xid        xid8;
  v_flows      uuid[];
  v_ids        uuid[];
  v_ended_ats  timestamptz[];
  v_read       record;
  v_needed     uuid[];
  v_lost       uuid[];
begin
  v_read := ff._read_needed(
    p_partition_key, p_execution_ids, array_fill(p_now, array[cardinality(p_execution_ids)]), p_now);
  v_needed := v_read.needed;
  with item as materialized (
    select p_partition_key as pk, u.execution_id
    from unnest(p_execution_ids) u(execution_id)
    offset 0
  ),
  executions as (
    delete from ff.execution e
    using item i
    where e.partition_key = i.pk and e.execution_id = i.execution_id
    returning e.execution_id, e.terminal_at, e.flow_id, e.has_stream
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
  signals as (
    delete from ff.signal g
    using item i
    where g.partition_key = i.pk and g.execution_id = i.execution_id
  ),
  inbox as (
    delete from ff.signal_inbox b
    using item i
    where b.partition_key = i.pk and b.execution_id = i.execution_id
  ),
  waitpoints as (
    delete from ff.waitpoint w
    using item i
    where w.partition_key = i.pk and w.execution_id = i.execution_id
  ),
  approvals as (
    delete from ff.approval a
    using item i
    where a.partition_key = i.pk and a.execution_id = i.execution_id
  ),
  suspensions as (
    delete from ff.suspension p
    using item i
    where p.partition_key = i.pk and p.execution_id = i.execution_id
  ),
  grants as (
    delete from ff.grant g
    using item i
    where g.partition_key = i.pk and g.execution_id = i.execution_id
  ),
  streaming as materialized (
    select p_partition_key as pk, x.execution_id
    from executions x
    where x.has_stream
    offset 0
  ),
  streams as (
    delete from ff.stream s
    using streaming i
    where s.partition_key = i.pk and s.execution_id = i.execution_id
  ),
  chunks as (
    delete from ff.stream_chunk c
    using streaming i
    where c.partition_key = i.pk and c.execution_id = i.execution_id
  ),
  summaries as (
    delete from ff.stream_summary y
    using streaming i
    where y.partition_key = i.pk and y.execution_id = i.execution_id
  ),
  member as materialized (
    select p_partition_key as pk, x.flow_id, x.execution_id
    from executions x
    where x.flow_id is not null
    offset 0
  ),
  edges_in as (
    delete from ff.edge g
    using member m
    where g.partition_key = m.pk and g.downstream_id = m.execution_id
  ),
  edges_out as (
    delete from ff.edge g
    using member m
    where g.partition_key = m.pk and g.upstream_id = m.execution_id
  ),
  results as (
    delete from ff.kept_result k
    using member m
    where k.partition_key = m.pk and k.execution_id = m.execution_id
  ),
  groups as (
    delete from ff.edge_group y
    using member m
    where y.partition_key = m.pk and y.downstream_id = m.execution_id
  ),
  backlog as (
    delete from ff.cancel_backlog_member b
    using member m
    where b.partition_key = m.pk and b.flow_id = m.flow_id and b.execution_id = m.execution_id
  ),
  old as materialized (
    select p_partition_key as pk, x.execution_id
    from executions x
    where x.terminal_at + p_event_floor <= p_now and x.execution_id <> all (v_needed)
    offset 0
  ),
  events as (
    delete from ff.event v
    using old o
    where v.partition_key = o.pk and v.execution_id = o.execution_id
      -- The cancel event of a flow is deleted with the flow, even if an execution had the same id.
      and case when v.kind <> 'flow_cancel_requested' then true else not exists (
            select from ff.flow f
            where f.partition_key = p_partition_key and f.flow_id = v.execution_id
            offset 0) end
    returning v.generation, v.xid, v.execution_id
  )
  select g.generation, (select max(v.xid) from events v where v.generation = g.generation),
         (select array_agg(distinct m.flow_id) from member m), d.ids, d.ended_ats,
         array(select v.execution_id from events v where v.execution_id = any (v_read.lost_ids))
    into v_generation, v_xid, v_flows, v_ids, v_ended_ats, v_lost
  from (select max(v.generation) as generation from events v) g
  cross join (select array_agg(x.execution_id) as ids, array_agg(x.terminal_at) as ended_ats
              from executions x) d;
  insert into ff.event_trim (partition_key, due_at, execution_id)
  select p_partition_key, greatest(u.ended_at + p_event_floor, p_now), u.id
  from unnest(v_ids, v_ended_ats) u(id, ended_at)
  where u.ended_at + p_event_floor > p_now or u.id = any (v_needed)
  on conflict do nothing;
  perform ff._raise_trim_mark(p_partition_key, v_generation, v_xid, array(
    select u.key from unnest(v_read.lost_ids, v_read.lost_by) u(id, key)
    where u.id = any (v_lost)), p_now);
  if v_flows is null then
    return;
  end if;

  with item as materialized (
    select p_partition_key as pk, u.id
    from unnest(v_flows) u(id)
    where not exists (
      select from ff.execution m
      where m.partition_key = p_partition_key and m.flow_id = u.id)
    offset 0
  ),
  flows as (
    delete from ff.flow f
    using item i
    where f.partition_key = i.pk and f.flow_id = i.id
    returning f.flow_id, f.cancelled_at
  ),
  backlog as (
    delete from ff.cancel_backlog b
    using item i
    where b.partition_key = i.pk and b.flow_id = i.id
  )
  -- The cancel event of the flow is kept for p_event_floor, too.
  insert into ff.event_trim (partition_key, due_at, execution_id)
  select p_partition_key, greatest(f.cancelled_at + p_event_floor, p_now), f.flow_id
  from flows f
  where f.cancelled_at is not null
  on conflict do nothing;
end;
$$;
