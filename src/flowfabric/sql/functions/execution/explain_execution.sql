-- Explain why an execution is not running, or say that it is: what blocks it, and until when.
--
-- Each row is one obstacle or one remark, in the order in which the engine checks: ended or
-- running, blocked, granted to a worker, lane open, capable worker alive, how many executions are
-- ahead. The first row is the answer. changes_at is when the answer may change by itself; null if
-- that is unknown.
--
-- Moves:    nothing
-- Refuses:  WF301 not_found
-- Locks:    none
-- Replay:   a read
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
  v_event  record;
  v_flow   ff.flow;
  v_cause  record;
  v_holder record;
  v_sleep  ff.step;
  v_live   record;
  v_able   bigint;
  v_routes bigint[];
  v_ahead  bigint;
  v_is_up  boolean;
  v_closed boolean;
begin
  perform ff._check_namespace(p_namespace);
  select e.* into v_row
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    and case when p_namespace is null then true else e.namespace = p_namespace end;
  if not found then
    perform ff._refuse('WF301', 'not_found', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id)));
  end if;
  select r.* into v_route from ff.route r where r.route_id = v_row.route_id;
  select l.* into v_lane
  from ff.lane l where l.namespace = v_route.namespace and l.lane = v_route.lane;
  select b.policy into v_policy
  from ff.execution_body b
  where b.partition_key = p_partition_key and b.execution_id = p_execution_id;
  -- Who caused the last event, and why.
  select v.kind, v.actor, v.detail, v.occurred_at into v_event
  from (
    select x.kind, x.actor, x.detail, x.occurred_at, x.event_id from ff.event x
    where x.partition_key = p_partition_key and x.execution_id = p_execution_id
    order by x.event_id desc
    limit 50) v
  where v.kind in ('blocked', 'held', 'cancelled', 'lease_revoked', 'replayed', 'skipped')
  order by v.event_id desc
  limit 1;

  if v_row.flow_id is not null then
    select f.* into v_flow from ff.flow f
    where f.partition_key = p_partition_key and f.flow_id = v_row.flow_id;
  end if;

  if v_row.phase = 'terminal' then
    if v_row.outcome = 'skipped' and v_event.kind = 'skipped' then
      select b.node_name, v_event.detail ->> 'upstream' as id, v_event.detail ->> 'outcome' as word
        into v_cause
      from (select split_part(v_event.detail ->> 'upstream', '}:', 2)::uuid as id) u
      left join ff.execution_body b
        on b.partition_key = p_partition_key and b.execution_id = u.id;
    else
      select null::text as node_name, null::text as id, null::text as word into v_cause;
    end if;
    return query select 'end',
      case v_row.outcome
        when 'success' then 'completed'
        when 'expired' then case when v_row.cause = 'expire'
                              then 'deadline_passed' else 'attempt_timed_out' end
        when 'cancelled' then 'cancelled'
        when 'skipped' then 'skipped'
        else case when v_row.cause <> 'exceed_reclaims' then 'failed'
                  when v_row.failure_category = 'crashed_alone' then 'crashed_alone'
                  else 'reclaims_exhausted' end end,
      jsonb_strip_nulls(jsonb_build_object(
        'at', v_row.terminal_at, 'attempts', v_row.total_attempt_count,
        'retries', v_row.retry_count, 'reclaims', v_row.reclaim_count,
        'lone_crashes', nullif(v_row.lone_crash_count, 0),
        'failure_class', v_row.failure_class, 'failure_category', v_row.failure_category,
        'failure_reason', v_row.failure_reason, 'deadline_at', v_row.deadline_at,
        'cancelled_by', v_row.cancelled_by, 'reason', v_row.cancellation_reason,
        'actor', case when v_event.kind::text = v_row.outcome::text then v_event.actor end,
        'upstream', v_cause.id, 'upstream_name', v_cause.node_name,
        'upstream_outcome', v_cause.word,
        'kept_until', v_row.trim_at)),
      null::timestamptz;
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
    return query select 'signal', 'suspended',
      jsonb_strip_nulls(jsonb_build_object(
        'blocking_reason', v_row.blocking_reason, 'detail', v_row.blocking_detail,
        'since', v_row.transitioned_at)),
      v_row.due_at;
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
    -- A row for every undecided group, with up to 5 of its open upstreams, unstarted ones last.
    return query
    select 'dependency', 'waiting_for_upstreams',
      jsonb_build_object(
        'since', v_row.transitioned_at, 'group', y.group_no, 'policy', y.policy,
        'needed', case y.policy when 'all_of' then y.n when 'any_of' then 1 else y.k end,
        'n', y.n, 'succeeded', y.succeeded, 'lost', y.failed + y.skipped,
        'open', coalesce(o.list, '[]'), 'is_more', coalesce(o.number, 0) > 5),
      null::timestamptz
    from ff.edge_group y
    cross join lateral (
      select jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
               'id', format('{fp:%s}:%s', p_partition_key, s.upstream_id), 'name', s.node_name,
               'state', s.public_state, 'is_over', s.is_over or null,
               'is_unapplied', s.is_unapplied or null)) order by s.nth)
               filter (where s.nth <= 5) as list,
             count(*) as number
      from (
        select g.upstream_id, b.node_name, e.public_state,
               coalesce(g.reopened_version >= e.version and e.phase = 'terminal', false) as is_over,
               g.resolution is null as is_unapplied,
               row_number() over (
                 order by coalesce(g.reopened_version >= e.version and e.phase = 'terminal', false)
                   desc, e.phase <> 'active', g.upstream_id, g.edge_id) as nth
        from ff.edge g
        join ff.execution e
          on e.partition_key = g.partition_key and e.execution_id = g.upstream_id
        left join ff.execution_body b
          on b.partition_key = g.partition_key and b.execution_id = g.upstream_id
        where g.partition_key = p_partition_key and g.downstream_id = p_execution_id
          and g.group_no = y.group_no
          and case when coalesce(g.resolution, 'unsatisfied') = 'unsatisfied'
                then true else false end) s
    ) o
    where y.partition_key = p_partition_key and y.downstream_id = p_execution_id
      and case when y.state = 'pending' and y.n > 0 then true else false end
    order by y.group_no;
    if not found then
      return query select 'dependency', 'waiting_for_children',
        jsonb_strip_nulls(jsonb_build_object(
          'detail', v_row.blocking_detail, 'since', v_row.transitioned_at)),
        null::timestamptz;
    end if;
  elsif v_row.eligibility = 'not_eligible_until_time' then
    if v_row.deadline_at > v_now and v_row.deadline_at <= v_row.delayed_until then
      return query select 'time', 'expires_before_it_starts',
        jsonb_build_object('deadline_at', v_row.deadline_at, 'delayed_until', v_row.delayed_until),
        v_row.deadline_at;
    end if;
    if v_row.delayed_until <= v_now then
      return query select 'time', 'promotion_due',
        jsonb_build_object('delayed_until', v_row.delayed_until,
                           'blocking_reason', v_row.blocking_reason),
        v_row.delayed_until;
    elsif v_row.attempt_state = 'pending_retry_attempt' then
      return query select 'time', 'retry_backoff',
        jsonb_strip_nulls(jsonb_build_object(
          'delayed_until', v_row.delayed_until, 'retry', v_row.retry_count,
          'max_retries', coalesce((v_policy #>> '{retry_policy,max_retries}')::numeric, 3),
          'failure_class', v_row.failure_class, 'failure_category', v_row.failure_category,
          'failure_reason', v_row.failure_reason, 'failed_at', v_row.attempt_ended_at)),
        v_row.delayed_until;
    else
      -- The current sleep: the first in the journal that ends with the delay.
      if v_row.attempt_state = 'attempt_interrupted' then
        select s.* into v_sleep
        from ff.step s
        where s.partition_key = p_partition_key and s.execution_id = p_execution_id
          and case when s.kind = 'sleep' and s.until_at = v_row.delayed_until
                then true else false end
        order by s.position
        limit 1;
      end if;
      return query select 'time',
        case when v_row.blocking_reason = 'waiting_for_resume_delay' then 'resume_delayed'
             when v_sleep.name is not null then 'sleeping'
             when v_row.attempt_state = 'attempt_interrupted' then 'delayed_by_worker'
             else 'delayed_by_submit' end,
        jsonb_strip_nulls(jsonb_build_object(
          'delayed_until', v_row.delayed_until, 'sleep', v_sleep.name,
          'occurrence', v_sleep.occurrence,
          'worker_instance_id', case when v_row.attempt_state = 'attempt_interrupted'
                                  then v_row.last_worker_instance_id end)),
        v_row.delayed_until;
    end if;
  elsif v_row.reclaim_at is not null and v_grant.execution_id is null then
    -- A granted worker does not wait.
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
    -- Narrow down: alive, of this namespace, knows the task, serves the lane, has the capabilities.
    -- At most 1 000 workers are read.
    select count(*) as alive,
           count(*) filter (where w.is_ours) as ours,
           count(*) filter (where w.is_ours and w.knows) as knowing,
           count(*) filter (where w.is_ours and w.knows and w.serves) as serving,
           (array_agg(w.worker_instance_id order by cardinality(w.missing), w.worker_instance_id)
             filter (where w.missing is not null))[1] as nearest,
           (array_agg(array_to_json(w.missing)
                      order by cardinality(w.missing), w.worker_instance_id)
             filter (where w.missing is not null))[1] as missing,
           (array_agg(distinct w.namespace) filter (where not w.is_ours))[1:10] as elsewhere,
           (array_agg(distinct w.served) filter (where w.is_ours and w.knows))[1:10] as lanes
      into v_live
    from (
      select k.worker_instance_id, k.namespace, k.is_ours, k.knows, k.serves,
             case when k.is_ours and k.knows then array_to_string(k.lanes, ', ') end as served,
             case when k.is_ours and k.knows and k.serves then array(
               select c.name from unnest(v_route.capabilities) c(name)
               where c.name <> all (k.capabilities)) end as missing
      from (
        select x.worker_instance_id, x.namespace, x.lanes, x.capabilities,
               x.namespace in ('', v_row.namespace) as is_ours,
               x.tasks is null or v_route.task = any (x.tasks) as knows,
               x.lanes is null or v_route.lane = any (x.lanes) as serves
        from ff.worker x
        where x.heartbeat_at + x.liveness_ttl > v_now
        order by x.namespace not in ('', v_row.namespace)
        limit 1000
      ) k
    ) w;
    return query select 'worker',
      case when v_live.alive = 0 then 'no_worker_alive'
           when v_live.ours = 0 then 'other_namespaces_only'
           when v_live.knowing = 0 then 'task_unknown'
           when v_live.serving = 0 then 'lane_not_served'
           else 'capabilities_missing' end,
      jsonb_strip_nulls(jsonb_build_object(
        'task', v_route.task, 'lane', v_route.lane, 'namespace', v_row.namespace,
        'live_workers', case when p_namespace is null then v_live.alive else v_live.ours end,
        'needs', case when v_live.serving > 0 then v_route.capabilities end,
        'nearest', v_live.nearest, 'missing', v_live.missing,
        'namespaces', case when p_namespace is null and v_live.alive > 0 and v_live.ours = 0
                           then v_live.elsewhere end,
        'lanes', case when v_live.knowing > 0 and v_live.serving = 0 then v_live.lanes end,
        'last_heard_at', case when v_live.alive = 0 then (
          select max(x.heartbeat_at) from ff.worker x
          where p_namespace is null or x.namespace in ('', p_namespace)) end)),
      null::timestamptz;
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
      -- Executions ahead of it in its lane, of any task; at most 200 routes and 1 001 rows are
      -- read.
      v_routes := array(
        select r.route_id from ff.route r
        where r.namespace = v_route.namespace and r.lane = v_route.lane
        order by r.route_id <> v_row.route_id
        limit 201);
      select count(*) into v_ahead
      from (
        select from unnest(v_routes[1:200]) r(route_id)
        cross join lateral (
          select from ff.execution e
          where e.partition_key = p_partition_key and e.route_id = r.route_id
            and e.phase = 'runnable' and e.eligibility = 'eligible_now'
            and (e.rank, e.order_at, e.execution_id)
              < (v_row.rank, v_row.order_at, v_row.execution_id)
          limit 1001) e
        limit 1001) a;
      return query select 'queue', 'in_line',
        jsonb_strip_nulls(jsonb_build_object(
          'lane', v_route.lane, 'task', v_route.task, 'ahead', least(v_ahead, 1000),
          'is_more', v_ahead > 1000 or cardinality(v_routes) > 200,
          'able_workers', least(v_able, 100), 'are_more_able', v_able > 100,
          'priority', 9000 - v_row.rank, 'since', v_row.transitioned_at,
          'waits_as', case v_row.attempt_state
            when 'pending_retry_attempt' then 'retry' when 'pending_replay_attempt' then 'replay'
            when 'attempt_interrupted' then 'resume' else 'first' end)),
        null::timestamptz;
    end if;
  end if;

  -- Remarks: no obstacles.
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
