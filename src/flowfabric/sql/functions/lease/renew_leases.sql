-- Renew the leases of a worker process, all in one call. Returns a row for every lease that was not
-- renewed. No row means that all were renewed.
--
-- A renewal is not a transition and writes no event. It usually changes no indexed column: due_at
-- changes only if the new expiry is earlier than due_at. If due_at is too early, ff.expire_leases
-- corrects it later.
--
-- Moves:    only if the holder is late: its expired lease is marked as expired (T19), or its
--           overdue execution is settled as by ff.expire_executions (T24, T23, T5, T4, T18)
-- Refuses:  WF001 invalid_input · per item: busy · not_found · duplicate · not_active
--           · lease_revoked · lease_expired · stale_lease · invalid
-- Locks:    executions in id order, without waiting; a busy lease is renewed by the next heartbeat
-- Repeat:   renews the leases again, counted from the second call
-- Rights:   app
drop function if exists ff.renew_leases;
create function ff.renew_leases(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[],
  p_lease_ids     uuid[],
  p_epochs        bigint[],
  p_attempt_ids   uuid[],
  p_lease_ttl     interval
)
returns table (item integer, outcome text, detail jsonb)
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
  v_now    timestamptz;
  v_judged ff.verdict[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(cardinality(p_execution_ids), array[
    array_upper(p_execution_ids, 1), cardinality(p_lease_ids), cardinality(p_epochs),
    cardinality(p_attempt_ids)],
    p_firsts => array[
      array_lower(p_execution_ids, 1), array_ndims(p_execution_ids),
      array_lower(p_lease_ids, 1), array_ndims(p_lease_ids),
      array_lower(p_epochs, 1), array_ndims(p_epochs),
      array_lower(p_attempt_ids, 1), array_ndims(p_attempt_ids)]);
  if ff._is_within(p_lease_ttl, interval '1 second', interval '1 day') is not true then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'lease_ttl', 'problem', 'must be between one second and one day'));
  end if;
  v_judged := ff._enforce_leases(p_partition_key, p_namespace, null, p_execution_ids, p_lease_ids,
                                 p_epochs, p_attempt_ids, false);
  v_now := ff.now();

  update ff.execution e set
    lease_expires_at =
      (greatest(v_now, e.transitioned_at) at time zone 'UTC' + p_lease_ttl) at time zone 'UTC',
    due_at = least(e.due_at, (greatest(v_now, e.transitioned_at) at time zone 'UTC' + p_lease_ttl)
                               at time zone 'UTC'),
    mutated_at = greatest(v_now, e.transitioned_at)
  from (
    select p_partition_key as pk, j.execution_id
    from unnest(v_judged) j
    where j.word = 'leased'
    offset 0
  ) i
  where e.partition_key = i.pk and e.execution_id = i.execution_id;

  return query
  select j.item, j.word, j.detail from unnest(v_judged) j where j.word <> 'leased';
end;
$$;
