-- Explain why an execution is not running, and when this can change. If the execution is running,
-- the answer says so.
--
-- Each row is one obstacle or one remark. The first row is the answer. The rows are in the order of
-- the engine's checks: the end of the execution, its deadline, its lease, a block or a delay, a
-- grant to a worker, the state of its lane, live workers, its code version, a lost lease,
-- executions ahead of it. Remarks come last. changes_at is the time at which the answer can change
-- by itself; null if that is unknown. An execution that was trimmed is explained while its events
-- are stored.
--
-- Moves:    nothing
-- Refuses:  WF301 not_found
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.explain_execution;
create function ff.explain_execution(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid
)
returns table (dimension text, code text, evidence jsonb, changes_at timestamptz)
language plpgsql
stable
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
  v_now    constant timestamptz := ff.now();
  v_row    ff.execution;
  v_route  ff.route;
  v_lane   ff.lane;
  v_grant  ff.grant;
  v_policy jsonb;
  v_event  ff.event;
  v_flow   ff.flow;
  v_holder record;
  v_able   bigint;
  v_is_up  boolean;
  v_closed boolean;
begin
  perform ff._check_namespace(p_namespace);
  select e.* into v_row
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    and case when p_namespace is null then true else e.namespace = p_namespace end;
  if not found then
    return query
    select * from ff._explain_trimmed(p_partition_key, p_namespace, p_execution_id, v_now);
    if found then
      return;
    end if;
    perform ff._refuse('WF301', 'not_found', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id)));
  end if;
  select r.* into v_route from ff.route r where r.route_id = v_row.route_id;
  select l.* into v_lane
  from ff.lane l where l.namespace = v_route.namespace and l.lane = v_route.lane;
  select b.policy into v_policy
  from ff.execution_body b
  where b.partition_key = p_partition_key and b.execution_id = p_execution_id;
  -- Read who caused the last event, and why.
  select v.* into v_event
  from (
    select x.* from ff.event x
    where x.partition_key = p_partition_key and x.execution_id = p_execution_id
    order by x.generation desc, x.event_id desc
    limit 50) v
  where v.kind in ('blocked', 'held', 'cancelled', 'lease_revoked', 'replayed', 'skipped')
  order by v.generation desc, v.event_id desc
  limit 1;

  if v_row.flow_id is not null then
    select f.* into v_flow from ff.flow f
    where f.partition_key = p_partition_key and f.flow_id = v_row.flow_id;
  end if;

  if v_row.phase = 'terminal' then
    return query select * from ff._explain_end(p_partition_key, v_row, v_event);
    return;
  end if;

  select g.* into v_grant
  from ff.grant g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id
    and case when g.expires_at > v_now then true else false end;
  if v_row.deadline_at <= v_now then
    return query select 'time', 'deadline_due',
      jsonb_build_object('deadline_at', v_row.deadline_at), v_row.deadline_at;
  end if;

  if v_row.ownership = 'leased' and v_row.lease_expires_at > v_now then
    select w.heartbeat_at, w.heartbeat_at + w.liveness_ttl > v_now as is_live into v_holder
    from ff.worker w
    where w.namespace in ('', v_row.namespace) and w.worker_instance_id = v_row.worker_instance_id
    order by w.heartbeat_at desc
    limit 1;
    return query select 'lease',
      case when v_holder.is_live then 'running' else 'holder_silent' end,
      jsonb_strip_nulls(jsonb_build_object(
        'worker_id', v_row.worker_id, 'worker_instance_id', v_row.worker_instance_id,
        'lease_expires_at', v_row.lease_expires_at, 'epoch', v_row.epoch,
        'attempt_index', v_row.attempt_index, 'attempt_type', v_row.attempt_type,
        'attempt_started_at', v_row.attempt_started_at,
        'attempt_deadline_at', v_row.attempt_deadline_at,
        'last_heard_at', v_holder.heartbeat_at, 'progress_percent', v_row.progress_percent,
        'progress_message', v_row.progress_message)),
      least(v_row.lease_expires_at, v_row.attempt_deadline_at, v_row.deadline_at);
  elsif v_flow.cancel_policy <> 'flow_only' then
    return query select 'operator', 'flow_being_cancelled',
      jsonb_strip_nulls(jsonb_build_object(
        'flow_id', format('{fp:%s}:%s', p_partition_key, v_row.flow_id),
        'since', v_flow.cancelled_at, 'policy', v_flow.cancel_policy,
        'actor', v_flow.cancelled_by, 'reason', v_flow.cancel_reason)),
      null::timestamptz;
  elsif v_row.phase = 'suspended' then
    v_holder := ff._explain_suspension(p_partition_key, p_execution_id);
    return query select 'signal',
      case when v_row.blocking_reason = 'paused_by_operator' then 'suspended_for_operator'
           else 'suspended' end,
      v_holder.evidence, least(v_holder.timeout_at, v_row.due_at);
  elsif v_row.eligibility = 'blocked_by_operator' then
    return query select 'operator',
      case when v_row.attempt_pause_cause = 'held' then 'held'
           when v_row.blocking_reason = 'paused_by_flow_cancel' then 'flow_being_cancelled'
           when v_row.blocking_reason = 'paused_by_policy' then 'paused_by_policy'
           else 'paused_by_operator' end,
      jsonb_strip_nulls(jsonb_build_object(
        'detail', v_row.blocking_detail, 'since', v_row.blocked_at,
        'actor', case when v_event.kind = 'blocked' then v_event.actor end,
        'step', case when v_event.kind = 'held' then v_event.detail ->> 'step' end,
        'reason', case when v_event.kind = 'held' then v_event.detail ->> 'reason' end)),
      null::timestamptz;
  elsif v_row.line_id is not null then
    return query select * from ff._explain_line(p_partition_key, v_row);
  elsif v_row.eligibility in ('blocked_by_budget', 'blocked_by_quota', 'blocked_by_route',
                              'blocked_by_lane_state') then
    return query select
      case v_row.eligibility when 'blocked_by_budget' then 'budget' when 'blocked_by_quota' then 'quota'
                             when 'blocked_by_route' then 'route' else 'lane' end,
      v_row.eligibility::text,
      jsonb_strip_nulls(jsonb_build_object(
        'detail', v_row.blocking_detail, 'since', v_row.blocked_at,
        'capabilities', case when v_row.eligibility = 'blocked_by_route' then v_route.capabilities end,
        'actor', case when v_event.kind = 'blocked' then v_event.actor end)),
      null::timestamptz;
  elsif v_row.wait_left is not null then
    return query
    select 'dependency', 'waiting_for_runs',
      jsonb_build_object(
        'since', v_row.transitioned_at, 'runs', count(*), 'ended', count(w.ended_at),
        'needed', count(w.ended_at) + v_row.wait_left,
        'open', coalesce(jsonb_agg(format('{fp:%s}:%s', p_partition_key, w.target_id)
                                   order by w.target_id)
                         filter (where w.ended_at is null and w.nth <= 10), '[]'),
        'is_more', count(*) filter (where w.ended_at is null) > 10),
      null::timestamptz
    from (
      select x.target_id, x.ended_at,
             row_number() over (partition by x.ended_at is null order by x.target_id) as nth
      from ff.run_wait x
      where x.partition_key = p_partition_key and x.waiter_id = p_execution_id) w;
  elsif v_row.eligibility = 'blocked_by_dependencies' then
    return query select * from ff._explain_dependencies(p_partition_key, v_row);
  elsif v_row.eligibility = 'not_eligible_until_time' then
    return query select * from ff._explain_delay(p_partition_key, v_row, v_policy, v_now);
  elsif v_row.reclaim_at is not null and v_grant.execution_id is null then
    -- A worker that has a grant may reclaim at once, so this wait does not concern it.
    return query select 'attempt', 'crash_loop',
      jsonb_strip_nulls(jsonb_build_object(
        'reclaims', v_row.reclaim_count, 'max_reclaims', v_row.max_reclaims,
        'crashes', v_row.crash_count, 'lone_crashes', v_row.lone_crash_count,
        'reclaim_at', v_row.reclaim_at, 'is_due', v_row.reclaim_at <= v_now,
        'worker_instance_id', coalesce(v_row.worker_instance_id, v_row.last_worker_instance_id))),
      v_row.reclaim_at;
  end if;

  v_is_up := v_row.ownership = 'leased' and v_row.lease_expires_at > v_now;
  if not v_is_up then
    if v_grant.execution_id is not null then
      return query select 'grant', 'granted',
        jsonb_build_object(
          'kind', v_grant.kind, 'worker_id', v_grant.worker_id,
          'worker_instance_id', v_grant.worker_instance_id, 'issued_at', v_grant.issued_at,
          'expires_at', v_grant.expires_at),
        v_grant.expires_at;
    end if;

    v_closed := v_lane.state = 'disabled'
      or (v_lane.state = 'paused' and (v_lane.resumes_at is null or v_lane.resumes_at > v_now));
    if v_closed then
      return query select 'lane', 'lane_' || v_lane.state::text,
        jsonb_strip_nulls(jsonb_build_object(
          'lane', v_lane.lane, 'by', v_lane.changed_by, 'reason', v_lane.reason,
          'since', v_lane.changed_at, 'resumes_at', v_lane.resumes_at)),
        v_lane.resumes_at;
    end if;
  end if;

  if not v_is_up and v_grant.execution_id is null then
    select count(*) into v_able
    from (
      select from ff.worker x
      where x.heartbeat_at + x.liveness_ttl > v_now and x.namespace in ('', v_row.namespace)
        and v_route.capabilities <@ x.capabilities
        and (x.lanes is null or v_route.lane = any (x.lanes))
        and (x.tasks is null or v_route.task = any (x.tasks))
      limit 101) w;
  end if;

  if v_able = 0 then
    return query select * from ff._explain_missing_worker(p_namespace, v_row, v_route, v_now);
  end if;

  if v_able > 0 and v_route.code_version is not null then
    return query select * from ff._explain_version(v_route, v_now);
  end if;

  if v_able is not null then
    if v_row.phase = 'active' and v_row.reclaim_at is null then
      return query select 'lease',
        case when v_row.reclaim_count - v_row.company_count >= v_row.max_reclaims
               or v_row.lone_crash_count >= 3 then 'reclaims_used_up'
             when v_row.ownership = 'lease_revoked' then 'lease_revoked'
             else 'lease_expired' end,
        jsonb_strip_nulls(jsonb_build_object(
          'worker_instance_id', coalesce(v_row.worker_instance_id, v_row.last_worker_instance_id),
          'lease_expires_at', v_row.lease_expires_at, 'is_marked', v_row.ownership <> 'leased',
          'reclaims', v_row.reclaim_count, 'max_reclaims', v_row.max_reclaims,
          'lone_crashes', nullif(v_row.lone_crash_count, 0),
          'able_workers', least(v_able, 100), 'are_more_able', v_able > 100,
          'by', case when v_event.kind = 'lease_revoked' then v_event.actor end,
          'reason', case when v_event.kind = 'lease_revoked' then v_event.detail ->> 'reason' end)),
        null::timestamptz;
    end if;

    if v_row.eligibility = 'eligible_now' and v_able > 0 and not v_closed
       and coalesce(v_row.deadline_at > v_now, true) then
      return query select * from ff._explain_queue(p_partition_key, v_row, v_route, v_able);
    end if;
  end if;

  -- The rows below are remarks, not obstacles.
  if v_row.attempt_state = 'pending_replay_attempt' then
    return query select 'attempt', 'replayed',
      jsonb_strip_nulls(jsonb_build_object(
        'replay', v_row.replay_count,
        'max_replays', coalesce((v_policy ->> 'max_replay_count')::numeric, 10),
        'by', case when v_event.kind = 'replayed' then v_event.actor end,
        'reason', case when v_event.kind = 'replayed' then v_event.detail ->> 'reason' end,
        'at', case when v_event.kind = 'replayed' then v_event.occurred_at end)),
      null::timestamptz;
  end if;
  if v_row.crash_count >= 2
     and (v_row.reclaim_at is null or v_grant.execution_id is not null) then
    return query select 'attempt', 'crash_loop',
      jsonb_strip_nulls(jsonb_build_object(
        'reclaims', v_row.reclaim_count, 'max_reclaims', v_row.max_reclaims,
        'crashes', v_row.crash_count, 'lone_crashes', v_row.lone_crash_count,
        'reclaim_at', v_row.reclaim_at)),
      v_row.reclaim_at;
  end if;
  if v_lane.state = 'paused' and v_lane.resumes_at <= v_now then
    return query select 'lane', 'lane_pause_over',
      jsonb_strip_nulls(jsonb_build_object(
        'lane', v_lane.lane, 'by', v_lane.changed_by, 'resumes_at', v_lane.resumes_at)),
      v_lane.resumes_at;
  elsif v_lane.state = 'draining' then
    return query select 'lane', 'lane_draining',
      jsonb_strip_nulls(jsonb_build_object(
        'lane', v_lane.lane, 'by', v_lane.changed_by, 'reason', v_lane.reason,
        'since', v_lane.changed_at)),
      null::timestamptz;
  end if;
  if v_row.deadline_at > v_now then
    return query select 'time', 'deadline_ahead',
      jsonb_build_object('deadline_at', v_row.deadline_at), v_row.deadline_at;
  end if;
end;
$$;
