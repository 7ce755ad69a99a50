-- Cancel a flow. The call records the cancellation, and writes a backlog: the list of the members
-- that must be cancelled. ff.cancel_members then cancels these members, each under its own lock.
-- When p_grace is over, ff.cancel_backlog cancels the members that are left.
--
-- The cancel policy decides which members are cancelled. cancel_all: all unfinished members.
-- cancel_pending: the same members, but running members are allowed to finish. flow_only: no
-- members, so there is no backlog. Ended members never change.
--
-- After this call no member can be added. If the policy is cancel_all or cancel_pending, no member
-- can be claimed, either, and waiting members are blocked.
--
-- A flow with unfinished members can be cancelled again with a stricter cancel policy. From mild to
-- strict, the policies are flow_only, cancel_pending, cancel_all. The second call replaces the
-- policy and the time of the first. A given actor or reason replaces the earlier one, too.
--
-- If the new cancel policy is not stricter, or if all members have ended, nothing changes, and the
-- answer is `already_terminal`. The answer has the policy and the reason of the earlier
-- cancellation, or nulls if the flow was never cancelled.
--
-- member_count is the number of unfinished members, and `members` lists them. If the answer is
-- `already_terminal`, `members` has at most 1000 of them. open_count is the number of members on
-- the backlog.
--
-- Moves:    runnable -> runnable blocked (T6, quiet)
-- Refuses:  WF001 invalid_input · WF305 flow_not_found
-- Locks:    the flow and its backlog, waiting up to 2 s for each; then its waiting members,
--           skipping locked ones
-- Repeat:   with the same p_call_id, the answer is `cancelled` again, with the members that are
--           still unfinished. If p_call_id is null, the answer is `already_terminal`
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
set timezone = 'UTC'
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
  v_policy     ff.flow_cancel_policy;
  v_flow       ff.flow;
  v_has_ended  boolean;
  v_version    integer;
  v_now        timestamptz;
  v_xid        xid8;
  v_generation integer;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  if ff._is_nil_id(p_flow_id) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'flow_id', 'problem', 'must be the id of a flow'));
  elsif p_policy is null or p_policy not in ('cancel_all', 'cancel_pending', 'flow_only') then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'policy', 'problem', 'must be cancel_all, cancel_pending or flow_only'));
  elsif p_call_id is not null and ff._is_nil_id(p_call_id) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'call_id', 'problem', 'must be a uuid made for this call, not the nil uuid'));
  elsif ff._is_within(p_grace, interval '0', interval '365 days') is not true then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'grace', 'problem', 'must be between 0 and 365 days'));
  end if;

  v_policy := p_policy;
  v_flow := ff._lock_flow(p_partition_key, p_namespace, p_flow_id);
  select coalesce(array_agg(e.execution_id order by e.execution_id)
                    filter (where e.phase <> 'terminal'), '{}'),
         count(*) > 0 and bool_and(e.phase = 'terminal')
    into members, v_has_ended
  from ff.execution e
  where e.partition_key = p_partition_key and e.flow_id = p_flow_id;
  member_count := cardinality(members);

  if v_flow.cancel_call_id = p_call_id then
    outcome := 'cancelled';
  elsif v_has_ended
        -- The enum is ordered from the strictest policy to the mildest.
        or v_flow.cancelled_at is not null and (member_count = 0 or v_policy >= v_flow.cancel_policy)
  then
    outcome := 'already_terminal';
    members := members[:1000];
  else
    outcome := 'cancelled';
    v_now := ff.now();
    v_now := greatest(v_now, v_flow.mutated_at);
    v_xid := pg_current_xact_id();
    v_generation := ff._enter_generation(p_partition_key);
    v_flow.cancel_reason := coalesce(p_reason, v_flow.cancel_reason);
    v_flow.cancelled_by := coalesce(p_actor, v_flow.cancelled_by);
    -- A flow has no version column: count its cancel events.
    v_version := 1;
    if v_flow.cancelled_at is not null then
      select greatest(max(v.version), 1) + 1 into v_version
      from ff.event v
      where v.partition_key = p_partition_key and v.execution_id = p_flow_id
        and v.kind = 'flow_cancel_requested';
    end if;
    update ff.flow f set
      cancelled_at = v_now,
      cancel_policy = v_policy,
      cancel_reason = v_flow.cancel_reason,
      cancelled_by = v_flow.cancelled_by,
      cancel_call_id = p_call_id,
      mutated_at = v_now
    where f.partition_key = p_partition_key and f.flow_id = p_flow_id;
    insert into ff.event (
      partition_key, generation, xid, execution_id, version, kind, flow_id, namespace, occurred_at,
      actor, detail)
    values (
      p_partition_key, v_generation, v_xid, p_flow_id, v_version, 'flow_cancel_requested',
      p_flow_id, v_flow.namespace, v_now, p_actor, jsonb_strip_nulls(jsonb_build_object(
        'policy', v_policy, 'reason', p_reason, 'member_count', member_count,
        'raised_from', v_flow.cancel_policy)));
    perform ff._write_audit(
      v_flow.namespace, p_actor, 'cancel_flow_header',
      format('{fp:%s}:%s', p_partition_key, p_flow_id), p_reason,
      jsonb_build_object('policy', v_flow.cancel_policy),
      jsonb_build_object('policy', v_policy, 'member_count', member_count));
    v_flow.cancel_policy := v_policy;

    if v_policy <> 'flow_only' and member_count > 0 then
      insert into ff.cancel_backlog_member (partition_key, flow_id, execution_id)
      select p_partition_key, p_flow_id, u.id from unnest(members) u(id)
      on conflict do nothing;
      insert into ff.cancel_backlog as b (
        partition_key, flow_id, policy, requested_at, requested_by, reason, due_at)
      values (p_partition_key, p_flow_id, v_policy, v_now, v_flow.cancelled_by,
              v_flow.cancel_reason, v_now + p_grace)
      on conflict (partition_key, flow_id) do update set
        policy = excluded.policy,
        requested_at = excluded.requested_at,
        requested_by = excluded.requested_by,
        reason = excluded.reason,
        due_at = excluded.due_at;
      perform ff._pause_members(p_partition_key, p_flow_id, v_flow.cancel_reason, v_now);
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
