-- Fail the running attempts of executions. For each execution, schedule a retry or end it as
-- failed. Returns a row for every item.
--
-- The policy stored with the execution decides whether a retry follows (_retry_delay).
-- p_retry_delays and p_retry_ats contain the delay or the time that a handler asked for. A time in
-- the past means now. If an item has both, the delay counts. If a retry would follow but the flow
-- of the execution is cancelled, the execution is cancelled; the answer to the holder is still
-- `failed`. An end is propagated as in ff.complete_executions.
--
-- p_places says where in user code each error came from. The task, the category and the place of a
-- failure are its fingerprint.
--
-- Moves:    active -> runnable delayed (T13) · active -> terminal failed (T14) or cancelled (T23);
--           an expired lease is marked (T19); propagation: runnable blocked or suspended ->
--           eligible (T4, T18), unfinished -> terminal cancelled (T23) or skipped (T5); an overdue
--           execution is settled as by ff.expire_executions (T24)
-- Refuses:  WF001 invalid_input · per item: busy · not_found · duplicate · not_active
--           · lease_revoked · lease_expired · stale_lease · invalid
-- Locks:    executions in id order, without waiting (if p_wait is true, waits up to 2 s for the
--           only item); then the executions that these ends affect, skipping locked ones
-- Repeat:   with the lease that reported the failure, the first answer again
-- Rights:   app
drop function if exists ff.fail_executions;
create function ff.fail_executions(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[],
  p_lease_ids     uuid[],
  p_epochs        bigint[],
  p_attempt_ids   uuid[],
  p_classes       text[],
  p_reasons       text[],
  p_categories    text[] default null,
  p_details       bytea[] default null,
  p_retry_delays  interval[] default null,
  p_retry_ats     timestamptz[] default null,
  p_wait          boolean default false,
  p_hint          boolean default true,
  p_places        text[] default null
)
returns table (
  item               integer,
  outcome            text,
  delayed_until      timestamptz,
  next_attempt_index integer,
  detail             jsonb
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
  v_now        timestamptz;
  v_xid        xid8;
  v_generation integer;
  v_judged     ff.verdict[];
  v_settled    ff.verdict[];
  -- These are parallel arrays, with one value for each item with a live lease.
  v_items      integer[];
  v_ids        uuid[];
  v_bad_fields text[];
  v_nows       timestamptz[];
  v_waits      interval[];
  v_cancels    boolean[];
  v_indexes    integer[];
  v_awaits     boolean[];
  v_gated      uuid[];
  v_streaming  uuid[];
  v_ended      uuid[];
  v_awaited    uuid[];
  v_wakes      record;
  v_pending    uuid[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(cardinality(p_execution_ids), array[
    array_upper(p_execution_ids, 1), cardinality(p_lease_ids), cardinality(p_epochs),
    cardinality(p_attempt_ids),
    cardinality(p_classes), cardinality(p_reasons), cardinality(p_categories),
    cardinality(p_details), cardinality(p_retry_delays), cardinality(p_retry_ats),
    cardinality(p_places)], p_wait,
    array[
      array_lower(p_execution_ids, 1), array_ndims(p_execution_ids),
      array_lower(p_lease_ids, 1), array_ndims(p_lease_ids),
      array_lower(p_epochs, 1), array_ndims(p_epochs),
      array_lower(p_attempt_ids, 1), array_ndims(p_attempt_ids),
      array_lower(p_classes, 1), array_ndims(p_classes),
      array_lower(p_reasons, 1), array_ndims(p_reasons),
      array_lower(p_categories, 1), array_ndims(p_categories),
      array_lower(p_details, 1), array_ndims(p_details),
      array_lower(p_retry_delays, 1), array_ndims(p_retry_delays),
      array_lower(p_retry_ats, 1), array_ndims(p_retry_ats),
      array_lower(p_places, 1), array_ndims(p_places)]);
  v_judged := ff._enforce_leases(p_partition_key, p_namespace, 'fail', p_execution_ids, p_lease_ids,
                                 p_epochs, p_attempt_ids, p_wait);
  v_now := ff.now();
  v_xid := pg_current_xact_id();
  v_generation := ff._enter_generation(p_partition_key);

  -- Decide before the rows change, and keep the answers in arrays. The outermost statement inserts
  -- the events, so it cannot return the answers.
  select array_agg(d.item), array_agg(d.execution_id), array_agg(d.bad_field), array_agg(d.now),
         array_agg(d.wait), array_agg(d.is_cancelled), array_agg(d.next_index),
         array_agg(d.is_awaited), array_agg(d.execution_id) filter (where d.is_gated),
         array_agg(d.execution_id) filter (where d.has_stream)
    into v_items, v_ids, v_bad_fields, v_nows, v_waits, v_cancels, v_indexes, v_awaits, v_gated,
         v_streaming
  from (
    select i.item, i.execution_id, i.bad_field, greatest(v_now, e.transitioned_at) as now,
           case when not e.is_cancelled then e.wait end as wait,
           e.is_cancelled and e.wait is not null as is_cancelled,
           e.total_attempt_count as next_index, e.is_awaited, e.is_gated,
           e.has_stream
    from (
      select j.item, j.execution_id, p_classes[j.item] as class, p_categories[j.item] as category,
             case when p_classes[j.item] is null
                    or p_classes[j.item] not in ('transient', 'permanent', 'infra_crash', 'timeout',
                                                 'cancelled')
                    then 'class'
                  when p_reasons[j.item] is null or octet_length(p_reasons[j.item]) > 256
                    or p_reasons[j.item] ~ E'[\x01-\x1f\x7f]'
                    then 'reason'
                  when octet_length(p_categories[j.item]) > 256 then 'category'
                  when octet_length(p_details[j.item]) > 65536 then 'detail'
                  when octet_length(p_places[j.item]) > 256 then 'place'
                  when not ff._is_within(p_retry_delays[j.item], interval '0', interval '36525 days')
                    then 'retry_delay'
                  when p_retry_ats[j.item] >= timestamptz '9999-01-01 00:00:00+00'
                    or p_retry_ats[j.item] < timestamptz '0001-01-02 00:00:00+00'
                    then 'retry_at' end as bad_field,
             coalesce(p_retry_delays[j.item],
                      case when isfinite(p_retry_ats[j.item])
                        then greatest(p_retry_ats[j.item] - v_now, interval '0') end) as asked
      from unnest(v_judged) j
      where j.word = 'leased'
      offset 0
    ) i
    left join lateral (
      select x.transitioned_at, x.total_attempt_count, x.is_awaited,
             x.quota_ids is not null as is_gated, x.has_stream,
             ff._retry_delay(b.policy, x.retry_count, i.class, i.category, random(), i.asked)
               as wait,
             x.flow_id is not null and exists (
               select from ff.flow f
               where f.partition_key = p_partition_key and f.flow_id = x.flow_id
                 and case when f.cancel_policy <> 'flow_only' then true else false end
               offset 0) as is_cancelled
      from ff.execution x
      left join ff.execution_body b
        on b.partition_key = p_partition_key and b.execution_id = x.execution_id
      where i.bad_field is null
        and x.partition_key = p_partition_key and x.execution_id = i.execution_id
      offset 0
    ) e on true
  ) d;

  with decided as materialized (
    select p_partition_key as pk, u.execution_id, p_classes[u.item]::ff.failure_class as class,
           p_categories[u.item] as category, p_reasons[u.item] as reason,
           p_details[u.item] as detail, p_places[u.item] as place, u.now, u.wait,
           (u.now at time zone 'UTC' + u.wait) at time zone 'UTC' as retry_at, u.is_cancelled
    from unnest(v_items, v_ids, v_bad_fields, v_nows, v_waits, v_cancels)
      u(item, execution_id, bad_field, now, wait, is_cancelled)
    where u.bad_field is null
    offset 0
  ),
  failed as (
    update ff.execution e set
      phase = case when d.wait is null then 'terminal'::ff.phase else 'runnable' end,
      ownership = 'unowned',
      eligibility = case when d.wait is null then 'not_applicable'::ff.eligibility
                         else 'not_eligible_until_time' end,
      blocking_reason = case when d.wait is null then 'none'::ff.blocking_reason
                             else 'waiting_for_retry_backoff' end,
      outcome = case when d.is_cancelled then 'cancelled'::ff.outcome
                     when d.wait is null then 'failed' else 'none' end,
      attempt_state = case when d.wait is null then 'attempt_terminal'::ff.attempt_state
                           else 'pending_retry_attempt' end,
      cause = case when d.is_cancelled then 'cancel'::ff.cause
                   when d.wait is null then 'fail' else 'schedule_retry' end,
      version = e.version + 1,
      retry_count = e.retry_count + (d.wait is not null)::integer,
      delayed_until = d.retry_at,
      due_at = case when d.wait is not null then least(d.retry_at, e.deadline_at) end,
      -- The attempt ended without a crash, so the execution is not a suspect.
      crash_count = 0,
      lone_crash_count = 0,
      last_lease_id = e.lease_id,
      last_lease_end = 'fail',
      last_lease_retry_at = d.retry_at,
      last_worker_id = e.worker_id,
      last_worker_instance_id = e.worker_instance_id,
      lease_id = null,
      lease_expires_at = null,
      worker_id = null,
      worker_instance_id = null,
      attempt_deadline_at = null,
      attempt_time_left = null,
      attempt_ended_at = d.now,
      attempt_ended_as = 'ended_failure',
      failure_class = d.class,
      failure_category = d.category,
      failure_reason = d.reason,
      failure_detail = d.detail,
      failure_place = d.place,
      cancellation_reason = case when d.is_cancelled then coalesce((
        select f.cancel_reason from ff.flow f
        where f.partition_key = p_partition_key and f.flow_id = e.flow_id), 'flow_cancelled') end,
      cancelled_by = case when d.is_cancelled then 'flow_cascade' end,
      terminal_at = case when d.wait is null then d.now end,
      trim_at = case when d.wait is null
        then (d.now at time zone 'UTC' + e.retention) at time zone 'UTC' end,
      transitioned_at = d.now,
      mutated_at = d.now
    from decided d
    where e.partition_key = d.pk and e.execution_id = d.execution_id
    returning e.execution_id, e.version, e.attempt_index, e.last_lease_id, e.epoch,
              e.route_id, e.last_worker_instance_id, e.flow_id, e.namespace, e.instance_tag,
              e.transitioned_at, e.delayed_until, e.failure_class, e.failure_category,
              e.outcome, e.cancellation_reason
  )
  insert into ff.event (
    partition_key, generation, xid, execution_id, version, kind, outcome, attempt_index, lease_id,
    epoch, worker_instance_id, route_id, flow_id, namespace, instance_tag, occurred_at, detail)
  select p_partition_key, v_generation, v_xid, f.execution_id, f.version,
         case f.outcome when 'cancelled' then 'cancelled'::ff.event_kind
                        when 'failed' then 'failed' else 'retry_scheduled' end,
         nullif(f.outcome, 'none'),
         f.attempt_index, f.last_lease_id, f.epoch, f.last_worker_instance_id, f.route_id,
         f.flow_id, f.namespace, f.instance_tag, f.transitioned_at,
         jsonb_strip_nulls(jsonb_build_object(
           'class', f.failure_class, 'category', f.failure_category,
           'delayed_until', f.delayed_until, 'reason', f.cancellation_reason,
           'source', case f.outcome when 'cancelled' then 'flow_cascade' end))
  from failed f;

  select array_agg(row(
           a.item, a.execution_id, a.word, a.until_at,
           case when a.until_at is not null then a.next_index end, a.detail)::ff.verdict),
         array_agg(a.execution_id) filter (where a.word = 'failed'),
         array_agg(a.execution_id) filter (where a.word = 'failed' and a.is_awaited)
    into v_settled, v_ended, v_awaited
  from (
    select u.item, u.execution_id, u.next_index, u.is_awaited,
           (u.now at time zone 'UTC' + u.wait) at time zone 'UTC' as until_at,
           case when u.bad_field is not null then 'invalid' when u.wait is null then 'failed'
                else 'retry_scheduled' end as word,
           case when u.bad_field is not null then jsonb_build_object(
             'field', u.bad_field,
             'problem', case u.bad_field
               when 'class' then 'must be transient, permanent, infra_crash, timeout or cancelled'
               when 'reason' then 'must be at most 256 bytes without control characters'
               when 'category' then 'must be at most 256 bytes'
               when 'place' then 'must be at most 256 bytes'
               when 'retry_delay'
                 then 'must be between 0 and a hundred years, in days or smaller units'
               when 'retry_at' then 'must be between the years 1 and 9999'
               else 'must be at most 64 KiB' end) end as detail
    from unnest(v_items, v_ids, v_bad_fields, v_nows, v_waits, v_indexes, v_awaits)
      u(item, execution_id, bad_field, now, wait, next_index, is_awaited)
  ) a;
  if exists (select from unnest(v_settled) s where s.word = 'retry_scheduled') then
    perform ff._drop_unanswered(p_partition_key, array(
      select s.execution_id from unnest(v_settled) s where s.word = 'retry_scheduled'));
  end if;
  if v_gated is not null then
    perform ff._release_gates(p_partition_key, v_gated);
  end if;
  if v_streaming is not null then
    perform ff._close_streams(p_partition_key, v_streaming, 'fail', v_now);
  end if;
  perform ff._submit_hooks(p_partition_key, v_ended);
  if v_awaited is not null then
    v_wakes := ff._propagate_end(p_partition_key, v_awaited, v_now);
    v_pending := v_wakes.pending_ids;
    if v_wakes.has_more then
      v_pending := array_append(v_pending, v_awaited[1]);
    end if;
  end if;

  return query
  select s.item, s.word, s.until_at, s.attempt_index,
         case when s.execution_id = any (v_pending)
                then jsonb_build_object('wakes_pending', true)
              else s.detail end
  from unnest(v_settled) s
  union all
  select j.item,
         case when j.word <> 'repeat' then j.word
              when j.until_at is null then 'failed' else 'retry_scheduled' end,
         j.until_at,
         case when j.word = 'repeat' and j.until_at is not null then j.attempt_index + 1 end,
         j.detail
  from unnest(v_judged) j
  where j.word <> 'leased';

  if p_hint and exists (select from unnest(v_judged) j where j.word = 'leased') then
    perform pg_notify('ff_ended', p_partition_key::text);
  end if;
end;
$$;
