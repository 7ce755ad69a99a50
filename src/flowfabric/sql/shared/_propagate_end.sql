-- Propagate the ends of executions, and the ends of all executions that end because of them. The
-- caller has locked the ended executions.
--
-- For each ended execution, the call wakes the executions that wait for it (_wake_waiters), cancels
-- the children bound to it (_cancel_bound_children), and resolves the edges out of it
-- (_resolve_edges). If a replayed member has succeeded again, the call also passes its new result
-- to its downstream members (_refresh_inputs).
--
-- Locked rows are skipped. The call handles at most p_limit rows, and cancels at most p_limit
-- siblings. An ended execution that has something left to propagate gets `wakes_pending`. This mark
-- is cleared when nothing is left to propagate.
--
-- Returns how many rows were handled, and which ended executions still have something to propagate
-- (pending_ids). Some of these can be executions that this call has ended. has_more is true if
-- pending_ids contains an execution that is not in p_ended_ids, or if siblings are left to cancel.
drop function if exists ff._propagate_end;
create function ff._propagate_end(
  p_partition_key  smallint,
  p_ended_ids      uuid[],
  p_now            timestamptz,
  p_limit          integer default 100,
  out handled      integer,
  out pending_ids  uuid[],
  out has_more     boolean
)
returns record
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_ended     uuid[] := p_ended_ids;
  v_all       uuid[] := p_ended_ids;
  v_children  record;
  v_edges     record;
  v_cancelled integer := 0;
  v_again     uuid[];
  v_refreshed record;
begin
  handled := 0;
  has_more := false;
  while cardinality(v_ended) > 0 loop
    handled := handled + ff._wake_waiters(
      p_partition_key, v_ended, p_now, greatest(p_limit - handled, 0));
    v_children := ff._cancel_bound_children(
      p_partition_key, v_ended, p_now, greatest(p_limit - handled, 0));
    handled := handled + v_children.handled;
    v_edges := ff._resolve_edges(
      p_partition_key, v_ended, p_now, greatest(p_limit - handled, 0),
      greatest(p_limit - v_cancelled, 0));
    handled := handled + v_edges.handled;
    v_cancelled := v_cancelled + v_edges.cancelled;
    has_more := has_more or v_edges.has_siblings;
    v_ended := v_children.ended_ids || v_edges.ended_ids;
    v_all := v_all || v_ended;
  end loop;

  with item as materialized (
    select p_partition_key as pk, u.id,
           x.replay_count > 0 and x.outcome = 'success' and x.flow_id is not null as is_again,
           exists (
             select from ff.run_wait w
             where w.partition_key = p_partition_key and w.target_id = u.id and w.ended_at is null
             offset 0)
           or exists (
             select from ff.execution c
             where c.partition_key = p_partition_key and c.parent_id = u.id
               and case when c.ends_with_parent and c.phase <> 'terminal'
                     then true else false end
             offset 0)
           or exists (
             select from ff.edge g
             where g.partition_key = p_partition_key and g.upstream_id = u.id
               and g.resolution = 'unsatisfied'
               and case when g.reopened_version >= x.version then false else true end
             offset 0) as is_pending
    from unnest(v_all) u(id)
    cross join lateral (
      select e.version, e.replay_count, e.outcome, e.flow_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
      offset 0) x
    offset 0
  ),
  marked as (
    update ff.execution e set wakes_pending = i.is_pending
    from item i
    where e.partition_key = i.pk and e.execution_id = i.id
      and case when e.wakes_pending <> i.is_pending then true else false end
  )
  select array_agg(i.id) filter (where i.is_pending),
         has_more or coalesce(bool_or(i.is_pending and i.id <> all (p_ended_ids)), false),
         array_agg(i.id) filter (where i.is_again)
    into pending_ids, has_more, v_again
  from item i;
  if v_again is null then
    return;
  end if;
  v_refreshed := ff._refresh_inputs(
    p_partition_key, v_again, p_now, greatest(p_limit - handled, 0));
  handled := handled + v_refreshed.handled;
  if cardinality(v_refreshed.pending_ids) > 0 then
    update ff.execution e set wakes_pending = true
    from (select p_partition_key as pk, u.id from unnest(v_refreshed.pending_ids) u(id) offset 0) i
    where e.partition_key = i.pk and e.execution_id = i.id;
    pending_ids := array(
      select u.id from unnest(coalesce(pending_ids, '{}') || v_refreshed.pending_ids) u(id)
      group by u.id);
    has_more := has_more or not (v_refreshed.pending_ids <@ p_ended_ids);
  end if;
end;
$$;
