-- Release leases of unfinished executions. A worker that shuts down gives its executions back in
-- this way.
--
-- The attempt is interrupted and resumes with the next claim. This costs neither a retry nor a
-- reclaim. Returns a row for every lease that this call did not release. No row means that all were
-- released.
--
-- Moves:    active -> runnable eligible, attempt interrupted (T15); an expired lease is marked as
--           expired (T19); an overdue execution is settled as by ff.expire_executions (T24, T23,
--           T5, T4, T18)
-- Refuses:  WF001 invalid_input · per item: busy · not_found · duplicate · not_active
--           · lease_revoked · lease_expired · stale_lease · invalid
-- Locks:    executions in id order, without waiting; if p_wait is true, waits up to 2 s for the
--           only item
-- Repeat:   with the lease that was given up, the answer is `released` again
-- Rights:   app
drop function if exists ff.release_leases;
create function ff.release_leases(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[],
  p_lease_ids     uuid[],
  p_epochs        bigint[],
  p_attempt_ids   uuid[],
  p_cause         text default 'worker_shutdown',
  p_wait          boolean default false
)
returns table (item integer, outcome text, detail jsonb)
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
  v_now    timestamptz;
  v_judged ff.verdict[];
  v_leased uuid[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(cardinality(p_execution_ids), array[
    array_upper(p_execution_ids, 1), cardinality(p_lease_ids), cardinality(p_epochs),
    cardinality(p_attempt_ids)], p_wait,
    array[
      array_lower(p_execution_ids, 1), array_ndims(p_execution_ids),
      array_lower(p_lease_ids, 1), array_ndims(p_lease_ids),
      array_lower(p_epochs, 1), array_ndims(p_epochs),
      array_lower(p_attempt_ids, 1), array_ndims(p_attempt_ids)]);
  if p_cause is null or octet_length(p_cause) > 256 or p_cause ~ E'[\x01-\x1f\x7f]' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cause', 'problem', 'must be at most 256 bytes without control characters'));
  end if;
  v_judged := ff._enforce_leases(p_partition_key, p_namespace, 'release', p_execution_ids,
                                 p_lease_ids, p_epochs, p_attempt_ids, p_wait);
  v_now := ff.now();
  v_leased := array(select j.execution_id from unnest(v_judged) j where j.word = 'leased');
  if cardinality(v_leased) > 0 then
    perform ff._interrupt_executions(
      p_partition_key, v_leased, 'release', 'eligible_now', 'waiting_for_worker', 'release',
      'released', p_cause, v_now, p_detail => jsonb_build_object('cause', p_cause));
  end if;
  return query
  select j.item, case j.word when 'repeat' then 'released' else j.word end, j.detail
  from unnest(v_judged) j
  where j.word <> 'leased';
end;
$$;
