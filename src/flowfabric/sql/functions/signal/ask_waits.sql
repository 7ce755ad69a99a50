-- Ask for the answers of waits. A new wait is opened. If p_takes is true for a wait, its answer is
-- taken. Returns a row for every item.
--
-- A wait is a step of kind `wait`. Like every step, it is identified by its name and occurrence.
-- Its timeout begins when the wait is first opened. If signals satisfy the wait, these signals are
-- its answer, even after the timeout. If waitpoints that the condition needs are closed, so that
-- the condition can no longer be satisfied, the wait times out immediately. Only the holder of the
-- lease can take an answer. A signal is taken at most once.
--
-- An item that is not refused has one of four outcomes. `taken`: the answer was taken, now or
-- earlier, and taken_as says what it was (signals, timeout or operator). `ready`: signals have
-- satisfied the wait since ready_at, but p_takes is false. `timed_out`: the timeout has come, but
-- p_takes is false. `open`: the wait has no answer yet.
--
-- Moves:    only if the caller is late: an overdue execution is settled as by ff.expire_executions
--           (T24, T23, T5, T4, T18); an expired lease is marked as expired (T19)
-- Refuses:  WF001 invalid_input · per item: busy · not_found · not_active · lease_revoked
--           · lease_expired · stale_lease · unknown_route (namespace, lane, task, capabilities)
--           · invalid (field, problem)
-- Locks:    executions in id order, without waiting; if p_wait is true, waits up to 2 s for the
--           only item
-- Repeat:   if the answer was taken, the same answer again; otherwise the wait is judged again
-- Rights:   app
drop function if exists ff.ask_waits;
create function ff.ask_waits(
  p_partition_key  smallint,
  p_namespace      text,
  p_execution_ids  uuid[],
  p_lease_ids      uuid[],
  p_epochs         bigint[],
  p_attempt_ids    uuid[],
  p_names          text[],
  p_occurrences    integer[],
  p_positions      integer[],
  p_are_sequential boolean[],
  p_conditions     jsonb[],
  p_timeouts       interval[],
  p_takes          boolean[],
  p_wait           boolean default false,
  p_follows        integer[] default null,
  p_code_versions  text[] default null
)
returns table (
  item          integer,
  outcome       text,
  recorded_at   timestamptz,
  until_at      timestamptz,
  ready_at      timestamptz,
  taken_as      text,
  signal_ids    uuid[],
  value         bytea,
  encoding      text,
  attempt_index integer,
  detail        jsonb
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
  v_now       timestamptz;
  v_at        timestamptz;
  v_until_at  timestamptz;
  v_judged    ff.verdict[];
  v_unknown   ff.verdict[];
  v_verdict   ff.verdict;
  v_leased    uuid[];
  v_problem   text[];
  v_condition jsonb;
  v_step      ff.step;
  v_signal    record;
  v_waitpoints uuid[];
  v_item      integer;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(cardinality(p_execution_ids), array[
    cardinality(p_lease_ids), cardinality(p_epochs), cardinality(p_attempt_ids),
    cardinality(p_names), cardinality(p_occurrences), cardinality(p_positions),
    cardinality(p_are_sequential), cardinality(p_conditions), cardinality(p_timeouts),
    cardinality(p_takes), cardinality(p_follows), cardinality(p_code_versions)],
    p_wait,
    array[
      array_lower(p_execution_ids, 1), array_ndims(p_execution_ids),
      array_lower(p_lease_ids, 1), array_ndims(p_lease_ids),
      array_lower(p_epochs, 1), array_ndims(p_epochs),
      array_lower(p_attempt_ids, 1), array_ndims(p_attempt_ids),
      array_lower(p_names, 1), array_ndims(p_names),
      array_lower(p_occurrences, 1), array_ndims(p_occurrences),
      array_lower(p_positions, 1), array_ndims(p_positions),
      array_lower(p_are_sequential, 1), array_ndims(p_are_sequential),
      array_lower(p_conditions, 1), array_ndims(p_conditions),
      array_lower(p_timeouts, 1), array_ndims(p_timeouts),
      array_lower(p_takes, 1), array_ndims(p_takes),
      array_lower(p_follows, 1), array_ndims(p_follows),
      array_lower(p_code_versions, 1), array_ndims(p_code_versions)]);
  v_judged := ff._enforce_fences(
    p_partition_key, p_namespace, p_execution_ids, p_lease_ids, p_epochs, p_attempt_ids, p_wait);
  if p_code_versions is not null then
    -- There is one verdict per item, so an item and its verdict have the same number.
    v_unknown := ff._judge_versions(
      p_partition_key,
      array(select j.execution_id from unnest(v_judged) j order by j.item),
      array(select case when j.word = 'leased' then p_code_versions[j.item] end
            from unnest(v_judged) j order by j.item));
    v_judged := array(
      select row(j.item, j.execution_id, coalesce(k.word, j.word), j.until_at, j.attempt_index,
                 coalesce(k.detail, j.detail))::ff.verdict
      from unnest(v_judged) j
      left join unnest(v_unknown) k on k.item = j.item
      order by j.item);
  end if;
  v_now := ff.now();
  v_leased := array(
    select distinct j.execution_id from unnest(v_judged) j where j.word = 'leased' order by 1);
  perform ff._notice_signals(p_partition_key, v_leased, v_now);

  foreach v_verdict in array v_judged loop
    v_item := v_verdict.item;
    item := v_item;
    outcome := v_verdict.word;
    recorded_at := null; until_at := null; ready_at := null; taken_as := null;
    signal_ids := null; value := null; encoding := null; attempt_index := null;
    detail := case when v_verdict.word <> 'busy' then v_verdict.detail end;
    if v_verdict.word <> 'leased' then
      return next;
      continue;
    end if;
    v_condition := p_conditions[v_item];
    v_problem := coalesce(
      ff._wait_problem(
        p_names[v_item], p_occurrences[v_item], p_positions[v_item], p_are_sequential[v_item],
        p_follows[v_item], p_timeouts[v_item], p_takes[v_item]),
      case when ff._condition_problem(v_condition) is not null
             then array['condition', ff._condition_problem(v_condition)] end);
    v_waitpoints := case when v_problem is null then ff._waitpoints_in(v_condition) end;
    if cardinality(v_waitpoints) > (
         select count(*) from ff.waitpoint w
         where w.partition_key = p_partition_key and w.execution_id = v_verdict.execution_id
           and w.waitpoint_id = any (v_waitpoints)) then
      v_problem := array['condition', 'names a waitpoint that the execution does not have'];
    end if;
    if v_problem is not null then
      outcome := 'invalid';
      detail := jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]);
      return next;
      continue;
    end if;

    select greatest(v_now, e.transitioned_at) into v_at from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = v_verdict.execution_id;
    v_until_at := v_at + p_timeouts[v_item];
    insert into ff.step (
      partition_key, execution_id, name, occurrence, position, is_sequential, kind, attempt_index,
      epoch, recorded_at, until_at, follows, condition, opened_at)
    values (
      p_partition_key, v_verdict.execution_id, p_names[v_item], p_occurrences[v_item],
      p_positions[v_item], p_are_sequential[v_item], 'wait', v_verdict.attempt_index,
      p_epochs[v_item], v_at, v_until_at, p_follows[v_item], v_condition, v_at)
    on conflict (partition_key, execution_id, name, occurrence) do update set
      opened_at = coalesce(step.opened_at, v_at),
      until_at = case when step.opened_at is null then v_until_at else step.until_at end,
      -- Newer code may wait for a value of another type.
      condition = v_condition
    where step.kind = 'wait' and step.taken_as is null
      and (step.opened_at is null or step.condition <> v_condition);
    select s.* into v_step from ff.step s
    where s.partition_key = p_partition_key and s.execution_id = v_verdict.execution_id
      and s.name = p_names[v_item] and s.occurrence = p_occurrences[v_item];
    if v_step.kind <> 'wait' then
      outcome := 'invalid';
      detail := jsonb_build_object(
        'field', 'name', 'problem', format('is recorded as a %s, not as a wait', v_step.kind));
      return next;
      continue;
    end if;
    if v_step.taken_as is null and v_waitpoints is not null then
      perform ff._activate_waitpoints(
        p_partition_key, v_verdict.execution_id, v_waitpoints, v_condition, v_at);
    end if;
    if v_step.taken_as is null then
      v_signal := ff._read_matching_signals(
        p_partition_key, v_verdict.execution_id, v_step.condition);
      if v_signal.signal_ids is null and exists (
           select from ff.waitpoint w
           where w.partition_key = p_partition_key and w.execution_id = v_verdict.execution_id
             and w.waitpoint_id = any (v_waitpoints) and w.closed_at is not null
           offset 0) then
        perform ff._time_out_unanswerable_waits(
          p_partition_key, v_verdict.execution_id, v_waitpoints, v_at);
        select s.* into v_step from ff.step s
        where s.partition_key = p_partition_key and s.execution_id = v_verdict.execution_id
          and s.name = p_names[v_item] and s.occurrence = p_occurrences[v_item];
      end if;
      if v_signal.signal_ids is not null then
        v_step.ready_at := v_signal.ready_at;
        if p_takes[v_item] then
          -- If the wait takes one signal, its value is stored with the wait. Several signals are
          -- read by their ids.
          with taken as (
            update ff.signal g set
              taken_at = v_at,
              wait_name = p_names[v_item],
              wait_occurrence = p_occurrences[v_item],
              answered_id = case when g.waitpoint_id is null then c.answered_id end
            from (
              select p_partition_key as pk, u.signal_id, u.answered_id
              from unnest(v_signal.signal_ids, v_signal.answered_ids) u(signal_id, answered_id)
              offset 0) c
            where g.partition_key = c.pk and g.execution_id = v_verdict.execution_id
              and g.signal_id = c.signal_id
            returning g.payload, g.payload_encoding
          )
          update ff.step s set
            ready_at = v_signal.ready_at,
            taken_at = v_at,
            taken_as = 'signals',
            signal_ids = v_signal.signal_ids,
            value = t.payload,
            encoding = t.payload_encoding
          from (
            select case when count(*) = 1 then (array_agg(x.payload))[1] end as payload,
                   case when count(*) = 1 then min(x.payload_encoding) end as payload_encoding
            from taken x
          ) t
          where s.partition_key = p_partition_key and s.execution_id = v_verdict.execution_id
            and s.name = p_names[v_item] and s.occurrence = p_occurrences[v_item]
          returning s.* into v_step;
        end if;
      elsif v_step.until_at <= v_at then
        v_step.ready_at := v_step.until_at;
        if p_takes[v_item] then
          update ff.step s set
            ready_at = s.until_at,
            taken_at = v_at,
            taken_as = 'timeout'
          where s.partition_key = p_partition_key and s.execution_id = v_verdict.execution_id
            and s.name = p_names[v_item] and s.occurrence = p_occurrences[v_item]
          returning s.* into v_step;
        else
          outcome := 'timed_out';
        end if;
      end if;
    end if;
    if v_step.taken_at = v_at and v_waitpoints is not null then
      if v_step.taken_as = 'signals' then
        -- All other signals that were sent with these tokens are spent. So a replay that waits
        -- again needs new answers.
        update ff.signal g set taken_at = v_at
        where g.partition_key = p_partition_key and g.execution_id = v_verdict.execution_id
          and g.waitpoint_id = any (v_waitpoints) and g.taken_at is null
          and g.noticed_at is not null
          and case when g.category = 'approval' then false else true end;
      end if;
      perform ff._close_waitpoints(
        p_partition_key, v_verdict.execution_id, v_waitpoints,
        case when v_step.taken_as = 'signals' then 'resumed' else 'timed_out' end, v_at);
    end if;
    outcome := case when v_step.taken_as is not null then 'taken'
                    when outcome = 'timed_out' then outcome
                    when v_step.ready_at is not null then 'ready'
                    else 'open' end;
    recorded_at := v_step.recorded_at;
    until_at := v_step.until_at;
    ready_at := v_step.ready_at;
    taken_as := v_step.taken_as;
    signal_ids := v_step.signal_ids;
    value := v_step.value;
    encoding := v_step.encoding;
    attempt_index := v_step.attempt_index;
    return next;
  end loop;

  if p_code_versions is not null then
    perform ff._move_to_versions(
      p_partition_key, array_agg(j.execution_id), array_agg(p_code_versions[j.item]))
    from unnest(v_judged) j
    where j.word = 'leased' and p_code_versions[j.item] is not null;
  end if;
end;
$$;
