-- Cancel siblings: upstreams that a decided group no longer needs. This call cancels the siblings
-- that could not be cancelled when the group was decided, because they were locked or because there
-- were too many.
--
-- An upstream that another group still waits for is not cancelled. due_in is the time after which
-- the next call is worthwhile. It is null if no group has siblings left to cancel.
--
-- Moves:    any unfinished state -> terminal cancelled (T23); propagation: runnable blocked or
--           suspended -> eligible (T4, T18), unfinished -> terminal skipped (T5)
-- Refuses:  WF001 invalid_input
-- Locks:    the downstreams of the groups, then the executions to cancel, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.cancel_siblings;
create function ff.cancel_siblings(p_partition_key smallint, p_limit integer default 100)
returns table (
  handled          integer,
  due_in           interval,
  cancelled        integer,
  already_terminal integer,
  not_found        integer,
  retained         integer
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now     timestamptz := ff.now();
  v_found   record;
  v_group   ff.edge_group;
  v_done    record;
  v_ended   uuid[] := '{}';
  v_wakes   record;
begin
  perform ff._check_pass(p_limit);
  already_terminal := 0;
  not_found := 0;
  retained := 0;
  for v_found in
    select y.downstream_id, y.group_no
    from ff.edge_group y
    where y.partition_key = p_partition_key and y.cancel_pending
    order by y.cancel_enqueued_at
    limit 50
  loop
    exit when cardinality(v_ended) >= p_limit;
    perform 1 from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = v_found.downstream_id
    for no key update skip locked;
    continue when not found;
    -- Another call may have handled the group meanwhile.
    select y.* into v_group
    from ff.edge_group y
    where y.partition_key = p_partition_key and y.downstream_id = v_found.downstream_id
      and y.group_no = v_found.group_no
      and case when y.cancel_pending then true else false end;
    continue when not found;
    v_done := ff._cancel_siblings(
      p_partition_key, v_group.downstream_id, v_group.group_no, v_group.cancel_members,
      v_group.cancel_reason, v_now, p_limit - cardinality(v_ended));
    v_ended := v_ended || v_done.cancelled_ids;
    already_terminal := already_terminal + v_done.terminal;
    not_found := not_found + v_done.missing;
    retained := retained + v_done.retained;
  end loop;
  cancelled := cardinality(v_ended);
  handled := cancelled + already_terminal + not_found + retained;
  if cancelled > 0 then
    v_wakes := ff._propagate_end(
      p_partition_key, ff._read_awaited(p_partition_key, v_ended), v_now, p_limit);
  end if;
  due_in := case
    when not exists (
      select from ff.edge_group y where y.partition_key = p_partition_key and y.cancel_pending)
      then null
    when handled > 0 then interval '0'
    else interval '100 milliseconds' end;
  return next;
end;
$$;
