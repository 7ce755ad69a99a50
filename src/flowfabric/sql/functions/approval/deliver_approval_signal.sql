-- Answer an approval without a token. p_decision is approved or rejected. p_actor is the person who
-- answers. The caller must have authenticated this person.
--
-- The answer counts for the approver p_approver. If p_approver is null, the answer counts for the
-- approver who has the actor's name. Each approver answers once. In one approval, an actor answers
-- for one approver only.
--
-- p_approval_id can be null if only one open approval of the execution asks the approver. If
-- several open approvals ask the approver, the call is refused with invalid_input. If no open
-- approval asks the approver, the call is refused with approval_not_found, and the detail lists the
-- approvers of the open approvals.
--
-- Moves:    suspended -> runnable eligible or delayed (T18)
-- Refuses:  WF001 invalid_input · WF245 already_answered (approver, decision, actor) · WF301
--           not_found · WF325 approval_not_found (approver, open) · WF501 forbidden
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   `duplicate`, with the id and the effect of the stored signal
-- Rights:   operator
drop function if exists ff.deliver_approval_signal;
create function ff.deliver_approval_signal(
  p_partition_key    smallint,
  p_namespace        text,
  p_execution_id     uuid,
  p_decision         text,
  p_actor            text,
  p_signal_id        uuid,
  p_approver         text default null,
  p_approval_id      uuid default null,
  p_payload          bytea default null,
  p_payload_encoding text default null
)
returns table (outcome text, signal_id uuid, effect text, approver text)
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
  v_id         constant text := format('{fp:%s}:%s', p_partition_key, p_execution_id);
  v_approver   constant text := coalesce(p_approver, p_actor);
  v_row        ff.execution;
  v_point      ff.waitpoint;
  v_signal     ff.signal;
  v_problem    text[];
  v_open       text[];
  v_approvals  uuid[];
  v_now        timestamptz;
  v_xid        xid8;
  v_generation integer;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_operator('deliver_approval_signal');
  v_problem := coalesce(
    case
      when p_actor is null or p_actor = '' then array['actor', 'must say who answers']
      when p_decision is null or p_decision not in ('approved', 'rejected')
        then array['decision', 'must be approved or rejected']
      when octet_length(p_payload) > 65536
        then array['payload', 'must be at most 64 KiB'] end,
    ff._signal_problem(p_execution_id, p_signal_id, p_decision, p_payload_encoding, null,
                       'operator', p_actor, 'approval', null, true));
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  v_now := ff.now();
  v_now := greatest(v_now, v_row.transitioned_at);
  -- A repeat gets its first answer, even if the approval has been decided since.
  select g.* into v_signal from ff.signal g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id
    and g.signal_id = p_signal_id and g.name = p_decision and g.source_identity = p_actor
    and g.category in ('approval', 'spent_approval');
  if found then
    return query
    select 'duplicate', v_signal.signal_id, v_signal.effect, w.key from ff.waitpoint w
    where w.partition_key = p_partition_key and w.execution_id = p_execution_id
      and w.waitpoint_id = v_signal.waitpoint_id;
    return;
  end if;
  v_open := array(
    select w.key from ff.waitpoint w
    where w.partition_key = p_partition_key and w.execution_id = p_execution_id
      and w.closed_at is null and w.approval_id is not null and v_row.phase <> 'terminal'
      and (p_approval_id is null or w.approval_id = p_approval_id)
    order by w.created_at, w.key);
  select w.* into v_point from ff.waitpoint w
  where w.partition_key = p_partition_key and w.execution_id = p_execution_id
    and w.closed_at is null and w.key = v_approver and w.approval_id is not null
    and v_row.phase <> 'terminal'
    and (p_approval_id is null or w.approval_id = p_approval_id)
  order by w.created_at, w.waitpoint_id
  limit 1;
  if not found then
    perform ff._refuse('WF325', 'approval_not_found', jsonb_build_object(
      'id', v_id, 'approver', v_approver, 'open', to_jsonb(v_open)));
  end if;
  v_approvals := array(
    select distinct w.approval_id from ff.waitpoint w
    where w.partition_key = p_partition_key and w.execution_id = p_execution_id
      and w.closed_at is null and w.key = v_approver and w.approval_id is not null
      and (p_approval_id is null or w.approval_id = p_approval_id));
  if cardinality(v_approvals) > 1 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'approval_id', 'problem', format(
        'must be given: %s approvals ask %s: %s', cardinality(v_approvals), v_approver,
        array_to_string(v_approvals, ', '))));
  end if;
  v_generation := ff._enter_generation(p_partition_key);
  v_xid := pg_current_xact_id();
  -- Repeat this if the approver answers with the token at the same moment.
  loop
    -- Look for an answer of this approver, or of the same actor for another approver.
    select g.* into v_signal
    from ff.waitpoint w
    join ff.signal g on g.partition_key = p_partition_key and g.execution_id = p_execution_id
      and g.waitpoint_id = w.waitpoint_id and g.category = 'approval'
    where w.partition_key = p_partition_key and w.execution_id = p_execution_id
      and w.approval_id = v_point.approval_id
      and (w.waitpoint_id = v_point.waitpoint_id
           or (g.source_type = 'operator' and g.source_identity = p_actor))
    order by (w.waitpoint_id = v_point.waitpoint_id) desc
    limit 1;
    if found then
      if v_signal.waitpoint_id = v_point.waitpoint_id and v_signal.name = p_decision then
        return query select 'duplicate', v_signal.signal_id, v_signal.effect, v_approver;
        return;
      end if;
      perform ff._refuse('WF245', 'already_answered', jsonb_build_object(
        'id', v_id, 'approver', v_approver, 'decision', v_signal.name,
        'actor', case when v_signal.waitpoint_id <> v_point.waitpoint_id then p_actor end));
    end if;
    insert into ff.signal (
      partition_key, execution_id, signal_id, name, waitpoint_id, category, source_type,
      source_identity, payload, payload_encoding, accepted_at, noticed_at, effect,
      generation, xid)
    values (
      p_partition_key, p_execution_id, p_signal_id, p_decision, v_point.waitpoint_id, 'approval',
      'operator', p_actor, p_payload, p_payload_encoding, v_now, v_now, 'buffered',
      v_generation, v_xid)
    on conflict do nothing;
    exit when found;
    if exists (
         select from ff.signal g
         where g.partition_key = p_partition_key and g.execution_id = p_execution_id
           and g.signal_id = p_signal_id) then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'signal_id', 'problem', 'is in use: mint an id for each signal'));
    end if;
  end loop;
  perform ff._notice_signals(p_partition_key, array[p_execution_id], v_now);
  effect := 'buffered';
  if cardinality(ff._wake_ready_suspensions(p_partition_key, array[p_execution_id], v_now)) > 0 then
    effect := 'woken';
    update ff.signal g set effect = 'woken'
    where g.partition_key = p_partition_key and g.execution_id = p_execution_id
      and g.signal_id = p_signal_id;
  end if;
  return query select 'accepted', p_signal_id, effect, v_approver;
end;
$$;
