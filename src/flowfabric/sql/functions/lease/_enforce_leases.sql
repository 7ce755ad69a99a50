-- Lock the executions of a batch and judge the fence that the caller presents for each. All rules
-- about fences, busy rows and repeated calls are here and nowhere else.
--
-- Rows are locked in id order, without waiting. If p_wait is true, a call for a single row waits
-- for that row.
--
-- The lease id is compared first. If it names the current lease, the call checks expiry, epoch and
-- attempt. If it names an ended lease, and the operation p_end ended that lease, the call is a
-- repeat and gets the first answer. Any other lease is refused.
--
-- After the deadline or the attempt timeout, the fence is refused, and the execution is settled
-- here as by ff.expire_executions (T24, T23). The verdict is not_active. The detail has the
-- reason, and the time of the retry if there is one.
--
-- If the holder lost its lease, the detail says which event ended the lease, who caused the event,
-- and why (ended_by, actor, source, because, timeout_ms).
--
-- The verdicts are: leased (the fence is valid and the row is locked) · repeat (until_at is the
-- same time as in the first answer) · duplicate (a second item for the same execution) · busy ·
-- not_found · invalid · not_active · lease_revoked · lease_expired (this call marks the lease as
-- expired) · stale_lease
drop function if exists ff._enforce_leases;
create function ff._enforce_leases(
  p_partition_key smallint,
  p_namespace     text,
  p_end           ff.lease_end,
  p_execution_ids uuid[],
  p_lease_ids     uuid[],
  p_epochs        bigint[],
  p_attempt_ids   uuid[],
  p_wait          boolean
)
returns ff.verdict[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_now      timestamptz;
  v_judged   ff.verdict[];
  v_expired  uuid[];
  v_over     uuid[];
  v_late     uuid[];
  v_has_lost boolean;
  v_lost     jsonb;
begin
  if p_wait then
    perform 1 from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_execution_ids[1]
      and case when p_namespace is null then true else e.namespace = p_namespace end
    for no key update;
  end if;
  v_now := ff.now();

  with asked as materialized (
    select u.id, u.lease_id, u.epoch, u.attempt_id, u.n::integer as n,
           lag(u.id) over (order by u.id, u.n) is not distinct from u.id as is_second
    from unnest(p_execution_ids, p_lease_ids, p_epochs, p_attempt_ids)
      with ordinality u(id, lease_id, epoch, attempt_id, n)
    order by u.id, u.n
    offset 0
  ),
  seen as materialized (
    select a.id, a.lease_id, a.epoch, a.attempt_id, a.n, a.is_second, e.execution_id,
           e.phase, e.ownership, e.outcome, e.row_epoch, e.row_lease_id, e.lease_expires_at,
           e.row_attempt_id, e.row_attempt_index, e.last_lease_id, e.last_lease_end,
           e.last_lease_retry_at, e.total_attempt_count, e.transitioned_at, e.deadline_at,
           e.attempt_deadline_at
    from asked a
    left join lateral (
      select x.execution_id, x.phase, x.ownership, x.outcome, x.epoch as row_epoch,
             x.lease_id as row_lease_id, x.lease_expires_at, x.attempt_id as row_attempt_id,
             x.attempt_index as row_attempt_index, x.last_lease_id, x.last_lease_end,
             x.last_lease_retry_at, x.total_attempt_count, x.transitioned_at, x.deadline_at,
             x.attempt_deadline_at
      from ff.execution x
      where not a.is_second
        and x.partition_key = p_partition_key and x.execution_id = a.id
        and case when p_namespace is null then true else x.namespace = p_namespace end
      for no key update skip locked
    ) e on true
  ),
  judged as (
    select s.n, s.id, s.lease_id, s.phase, s.ownership, s.outcome, s.row_epoch, s.row_attempt_id,
           s.row_attempt_index, s.last_lease_retry_at, h.last_lease_retry_at as history_until,
           h.attempt_index as history_index,
           case when s.lease_id = s.last_lease_id and s.row_lease_id is null
             then s.last_lease_end end as lost_by,
           case
             when s.id is null or s.lease_id is null or s.epoch is null or s.attempt_id is null
               then 'invalid'
             when s.is_second then 'duplicate'
             when s.execution_id is null then
               case when exists (
                      select from ff.execution x
                      where x.partition_key = p_partition_key and x.execution_id = s.id
                        and case when p_namespace is null then true
                                 else x.namespace = p_namespace end
                      offset 0)
                 then 'busy' else 'not_found' end
             when s.lease_id = s.row_lease_id then
               case when s.ownership <> 'leased'
                      or s.lease_expires_at <= greatest(v_now, s.transitioned_at)
                      then 'lease_expired'
                    when s.epoch <> s.row_epoch or s.attempt_id <> s.row_attempt_id
                      then 'stale_lease'
                    when s.deadline_at <= v_now then 'over'
                    when s.attempt_deadline_at <= v_now then 'late'
                    else 'leased' end
             when s.lease_id = s.last_lease_id and s.last_lease_end = p_end then 'repeat'
             when h.last_lease_end = p_end then 'repeat of an ended attempt'
             when s.phase <> 'active' then 'not_active'
             when s.lease_id = s.last_lease_id and s.ownership = 'lease_revoked'
               then 'lease_revoked'
             else 'stale_lease'
           end as word
    from seen s
    left join lateral (
      select t.last_lease_end, t.last_lease_retry_at, t.attempt_index
      from ff.attempt t
      where t.partition_key = p_partition_key and t.execution_id = s.id
        and s.total_attempt_count > 1
        and s.lease_id is distinct from s.row_lease_id
        and t.last_lease_id = s.lease_id
      limit 1
    ) h on true
  )
  select array_agg(row(
           j.n, j.id,
           case j.word when 'repeat of an ended attempt' then 'repeat' else j.word end,
           case j.word when 'repeat of an ended attempt' then j.history_until
                       when 'repeat' then j.last_lease_retry_at end,
           case j.word when 'repeat of an ended attempt' then j.history_index
                       else j.row_attempt_index end,
           case j.word
             when 'not_active' then jsonb_build_object(
                 'phase', j.phase, 'outcome', j.outcome, 'epoch', j.row_epoch,
                 'attempt_id', j.row_attempt_id)
               || case j.lost_by
                    when 'expire' then jsonb_build_object('reason', 'deadline_passed')
                    when 'time_out' then jsonb_strip_nulls(jsonb_build_object(
                      'reason', 'attempt_timed_out', 'delayed_until', j.last_lease_retry_at))
                    else '{}' end
             when 'invalid' then jsonb_build_object(
               'field', 'fence', 'problem', 'fence_required',
               'hint', 'give execution_id, lease_id, epoch and attempt_id of the claim')
           end)::ff.verdict),
         array_agg(j.id) filter (where j.word = 'lease_expired' and j.ownership = 'leased'),
         array_agg(j.id) filter (where j.word = 'over'),
         array_agg(j.id) filter (where j.word = 'late'),
         bool_or(j.word in ('not_active', 'lease_revoked', 'stale_lease'))
    into v_judged, v_expired, v_over, v_late, v_has_lost
  from judged j;

  if v_over is not null or v_late is not null then
    perform ff._settle_overdue_executions(p_partition_key, v_over, v_late, v_now);
    -- The settled executions may have ended other items of the batch, so judge all items again. The
    -- rows are locked already.
    return ff._enforce_leases(p_partition_key, p_namespace, p_end, p_execution_ids, p_lease_ids,
                              p_epochs, p_attempt_ids, false);
  end if;

  if v_has_lost then
    -- Explain who took the lease, and why. The query itself cannot do this, because the explanation
    -- runs a query, too.
    for i in 1 .. cardinality(v_judged) loop
      if v_judged[i].word in ('not_active', 'lease_revoked', 'stale_lease') then
        v_lost := ff._explain_lost_lease(
          p_partition_key, v_judged[i].execution_id, p_lease_ids[v_judged[i].item]);
        v_judged[i].detail := case
          when v_judged[i].detail is null then v_lost
          else v_judged[i].detail || coalesce(v_lost, '{}') end;
      end if;
    end loop;
  end if;
  if v_expired is not null then
    perform ff._expire_leases(p_partition_key, v_expired, v_now);
  end if;
  return coalesce(v_judged, '{}');
end;
$$;
