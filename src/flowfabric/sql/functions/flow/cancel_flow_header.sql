-- Cancel a flow: write down that it is, and which members have yet to end. They are ended afterwards,
-- each under its own lock, by ff.cancel_members, or by ff.cancel_backlog when p_grace is over.
--
-- From here on no member can be claimed, and none can be added. Those that wait are paused, so that
-- no claim sees them; whoever is locked at the moment is told apart by the claim itself. cancel_all
-- is about every member that has not ended; cancel_pending lets those drain that run; flow_only
-- leaves the members alone, and there is no backlog. What has ended is never touched.
--
-- Of a flow that was cancelled before, `already_terminal` tells by which policy and why, and at most
-- 1000 members. member_count and members are those of the flow, open_count those on the backlog.
--
-- Moves:    runnable -> runnable blocked (T6, quiet)
-- Refuses:  WF001 invalid_input · WF305 flow_not_found
-- Locks:    the flow, waiting up to 2 s; then its waiting members, skipping those that are locked
-- Replay:   the same p_call_id gets its first answer; any other call is told `already_terminal`
-- Rights:   app
drop function if exists ff.cancel_flow_header;
create function ff.cancel_flow_header(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid,
  p_policy        text default 'cancel_all',
  p_reason        text default null,
  p_actor         text default null,
  p_grace         interval default interval '30 seconds',
  p_call_id       uuid default null
)
returns table (
  outcome      text,
  policy       text,
  reason       text,
  member_count integer,
  open_count   integer,
  members      uuid[]
)
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
  v_flow ff.flow;
  v_now  timestamptz;
  v_xid  xid8;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_words(p_actor, p_reason);
  if p_flow_id is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'flow_id', 'problem', 'must be the id of a flow'));
  elsif p_policy is null or p_policy not in ('cancel_all', 'cancel_pending', 'flow_only') then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'policy', 'problem', 'must be cancel_all, cancel_pending or flow_only'));
  elsif p_grace is null or p_grace not between interval '0' and interval '365 days' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'grace', 'problem', 'must be between nothing and 365 days'));
  end if;

  v_flow := ff._lock_flow(p_partition_key, p_namespace, p_flow_id);
  members := array(
    select e.execution_id from ff.execution e
    where e.partition_key = p_partition_key and e.flow_id = p_flow_id
    order by e.execution_id);
  member_count := cardinality(members);

  if v_flow.cancelled_at is not null then
    outcome := case when v_flow.cancel_call_id = p_call_id then 'cancelled'
                    else 'already_terminal' end;
    if outcome = 'already_terminal' then
      members := members[:1000];
    end if;
  else
    outcome := 'cancelled';
    v_now := ff.now();
    v_now := greatest(v_now, v_flow.mutated_at);
    v_xid := pg_current_xact_id();
    with cancelled as (
      update ff.flow f set
        cancelled_at = v_now,
        cancel_policy = p_policy::ff.flow_cancel_policy,
        cancel_reason = p_reason,
        cancelled_by = p_actor,
        cancel_call_id = p_call_id,
        mutated_at = v_now
      where f.partition_key = p_partition_key and f.flow_id = p_flow_id
      returning f.namespace
    )
    -- The flow has no version: this is its one event.
    insert into ff.event (
      partition_key, xid, execution_id, version, kind, flow_id, namespace, occurred_at, actor,
      detail)
    select p_partition_key, v_xid, p_flow_id, 1, 'flow_cancel_requested', p_flow_id, c.namespace,
           v_now, p_actor, jsonb_strip_nulls(jsonb_build_object(
             'policy', p_policy, 'reason', p_reason, 'member_count', member_count))
    from cancelled c;
    v_flow.cancel_policy := p_policy;
    v_flow.cancel_reason := p_reason;

    if p_policy <> 'flow_only' then
      insert into ff.cancel_backlog_member (partition_key, flow_id, execution_id)
      select p_partition_key, p_flow_id, e.execution_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.flow_id = p_flow_id
        and case when e.phase <> 'terminal' then true else false end;
      if found then
        insert into ff.cancel_backlog (
          partition_key, flow_id, policy, requested_at, requested_by, reason, due_at)
        values (p_partition_key, p_flow_id, p_policy::ff.flow_cancel_policy, v_now, p_actor,
                p_reason, v_now + p_grace);
        perform ff._pause_members(p_partition_key, p_flow_id, p_reason, v_now);
      end if;
    end if;
  end if;

  policy := v_flow.cancel_policy;
  reason := v_flow.cancel_reason;
  open_count := (
    select count(*) from ff.cancel_backlog_member m
    where m.partition_key = p_partition_key and m.flow_id = p_flow_id);
  return next;
end;
$$;
