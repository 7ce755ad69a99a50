-- Cancel the next members on the backlog of a cancelled flow.
--
-- A member that has ended by now keeps its outcome. Under the policy cancel_pending, members with a
-- live lease are allowed to finish; `draining` is their number. `remaining` is the number of other
-- members on the backlog. If the call removed no member from the backlog, usually because all are
-- locked, remaining_ids lists up to 1000 of the remaining members. If wakes_pending is true, call
-- ff.resolve_wakes.
--
-- Moves:    any unfinished state -> terminal cancelled (T23); propagation: runnable blocked or
--           suspended -> eligible (T4, T18), unfinished -> terminal cancelled (T23) or skipped (T5)
-- Refuses:  WF001 invalid_input · WF305 flow_not_found
-- Locks:    the backlog of the flow, then executions, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.cancel_members;
create function ff.cancel_members(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid,
  p_limit         integer default 100
)
returns table (
  handled       integer,
  remaining     integer,
  draining      integer,
  wakes_pending boolean,
  remaining_ids uuid[]
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
  v_now     timestamptz;
  v_policy  ff.flow_cancel_policy;
  v_backlog ff.cancel_backlog;
  v_done    record;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  select f.cancel_policy into v_policy
  from ff.flow f
  where f.partition_key = p_partition_key and f.flow_id = p_flow_id
    and case when p_namespace is null then true else f.namespace = p_namespace end;
  if not found then
    perform ff._refuse('WF305', 'flow_not_found', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_flow_id)));
  end if;
  handled := 0;
  wakes_pending := false;
  select b.* into v_backlog
  from ff.cancel_backlog b
  where b.partition_key = p_partition_key and b.flow_id = p_flow_id
  for update skip locked;
  v_now := ff.now();
  if v_backlog.flow_id is not null then
    v_done := ff._cancel_backlog_members(p_partition_key, v_backlog, p_limit, v_now);
    handled := v_done.handled;
    wakes_pending := v_done.is_pending;
  end if;

  draining := 0;
  remaining_ids := array(
    select m.execution_id from ff.cancel_backlog_member m
    where m.partition_key = p_partition_key and m.flow_id = p_flow_id);
  if v_policy = 'cancel_pending' then
    draining := cardinality(remaining_ids);
    remaining_ids := array(
      select u.id from unnest(remaining_ids) u(id)
      left join lateral (
        select e.ownership, e.lease_expires_at from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0
      ) x on true
      where x.ownership is distinct from 'leased' or x.lease_expires_at <= v_now);
    draining := draining - cardinality(remaining_ids);
  end if;
  remaining := cardinality(remaining_ids);
  remaining_ids := case handled when 0 then remaining_ids[:1000] else '{}' end;
  return next;
end;
$$;
