-- Make ended executions eligible again (T28), or blocked if one of their groups is not satisfied
-- (T29). p_is_counted says whether these replays count towards the limit of replays. The caller has
-- locked the executions.
--
-- The latest attempt stays in the row until the next claim moves it to the history. Retries,
-- reclaims and crashes are counted from 0 again. A deadline that has passed is removed, because
-- otherwise the execution would expire immediately. A bound child is no longer bound to its parent.
-- Waitpoints that were closed by the end are opened again.
drop function if exists ff._write_replays;
create function ff._write_replays(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_is_counted    boolean,
  p_now           timestamptz,
  p_actor         text,
  p_detail        jsonb
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
  v_xid        constant xid8 := pg_current_xact_id();
  v_generation constant integer := ff._enter_generation(p_partition_key);
  v_route      bigint;
  v_branch     text;
  v_routes     bigint[] := '{}';
begin
  for v_route, v_branch in
    with item as materialized (
      select p_partition_key as pk, u.execution_id,
             exists (
               select from ff.edge g
               join ff.edge_group y
                 on y.partition_key = p_partition_key and y.downstream_id = g.downstream_id
                   and y.group_no = g.group_no
               where g.partition_key = p_partition_key and g.downstream_id = u.execution_id
                 and case when g.applied_at is not null and y.state <> 'satisfied'
                       then true else false end
               offset 0) as is_blocked
      from unnest(p_execution_ids) u(execution_id)
      offset 0
    ),
    replayed as (
      update ff.execution e set
        phase = 'runnable',
        eligibility = case when i.is_blocked then 'blocked_by_dependencies'::ff.eligibility
                           else 'eligible_now' end,
        blocking_reason = case when i.is_blocked then 'waiting_for_children'::ff.blocking_reason
                               else 'waiting_for_worker' end,
        outcome = 'none',
        attempt_state = 'pending_replay_attempt',
        cause = 'replay',
        version = e.version + 1,
        replay_count = e.replay_count + p_is_counted::integer,
        retry_count = 0,
        reclaim_count = 0,
        company_count = 0,
        crash_count = 0,
        lone_crash_count = 0,
        deadline_at = case when e.deadline_at > greatest(p_now, e.transitioned_at)
                        then e.deadline_at end,
        due_at = case when e.deadline_at > greatest(p_now, e.transitioned_at) then e.deadline_at end,
        terminal_at = null,
        trim_at = null,
        result = null,
        result_encoding = null,
        cancellation_reason = null,
        cancelled_by = null,
        ends_with_parent = false,
        wakes_pending = false,
        -- Keep the failure of an attempt. Drop the failure that says that the deadline passed
        -- before any attempt.
        failure_class = case when e.total_attempt_count > 0 then e.failure_class end,
        failure_category = case when e.total_attempt_count > 0 then e.failure_category end,
        failure_reason = case when e.total_attempt_count > 0 then e.failure_reason end,
        transitioned_at = greatest(p_now, e.transitioned_at),
        mutated_at = greatest(p_now, e.transitioned_at)
      from item i
      where e.partition_key = i.pk and e.execution_id = i.execution_id
      returning e.execution_id, e.version, e.route_id, e.flow_id, e.namespace, e.instance_tag,
                e.transitioned_at, i.is_blocked
    )
    insert into ff.event (
      partition_key, generation, xid, execution_id, version, kind, route_id, flow_id, namespace,
      instance_tag, occurred_at, actor, detail)
    select p_partition_key, v_generation, v_xid, r.execution_id, r.version, 'replayed', r.route_id,
           r.flow_id, r.namespace, r.instance_tag, r.transitioned_at, p_actor,
           jsonb_build_object('branch', case when r.is_blocked then 'skipped_flow_member'
                                             else 'normal' end) || p_detail
    from replayed r
    returning route_id, detail ->> 'branch'
  loop
    if v_branch = 'normal' and v_route <> all (v_routes) then
      v_routes := v_routes || v_route;
    end if;
  end loop;
  perform ff._drop_unanswered(p_partition_key, p_execution_ids);
  -- The journal still has these waitpoints, and the handler waits for them again.
  update ff.waitpoint w set closed_at = null, close_reason = null
  where w.partition_key = p_partition_key and w.execution_id = any (p_execution_ids)
    and w.close_reason = 'ended';
  perform ff._hint_ready(p_partition_key, v_routes);
end;
$$;
