-- List the leases that had expired at p_as_of (null means now), whether they are marked as expired
-- or not. A lease is left out while its execution waits in line to be reclaimed.
--
-- The order is (lease_expires_at, execution_id). A page begins strictly after (p_after_at,
-- p_after_id), so that leases with the same expiry are neither left out nor listed twice.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_expired_leases;
create function ff.list_expired_leases(
  p_partition_key smallint,
  p_namespace     text,
  p_as_of         timestamptz default null,
  p_after_at      timestamptz default null,
  p_after_id      uuid default null,
  p_limit         integer default 1000
)
returns table (
  execution_id       uuid,
  namespace          text,
  lease_id           uuid,
  epoch              bigint,
  worker_id          text,
  worker_instance_id text,
  lease_expires_at   timestamptz,
  attempt_index      integer,
  is_marked          boolean
)
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
  v_now   constant timestamptz := ff.now();
  -- Cap the time, because adding to a time near the end of the calendar would fail. No lease is
  -- longer than 100 years.
  v_as_of constant timestamptz := least(coalesce(p_as_of, v_now), v_now + interval '100 years');
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  if num_nonnulls(p_after_at, p_after_id) = 1 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'after', 'problem', 'takes both the time and the id of the last lease'));
  end if;
  return query
  select c.execution_id, c.namespace, c.lease_id, c.epoch, c.worker_id, c.worker_instance_id,
         c.lease_expires_at, c.attempt_index, c.ownership <> 'leased'
  from (
    -- A leased row is due at its expiry or earlier. A row that waits before its reclaim is due at
    -- most 4 minutes after it was marked.
    select e.execution_id, e.namespace, e.lease_id, e.epoch, e.worker_id, e.worker_instance_id,
           e.lease_expires_at, e.attempt_index, e.ownership
    from ff.execution e
    where e.partition_key = p_partition_key
      and e.due_at <= greatest(v_as_of, v_now) + interval '5 minutes'
      and case when e.ownership = 'leased'
                or (e.ownership = 'lease_expired_reclaimable' and e.reclaim_at is not null)
            then e.lease_expires_at <= v_as_of else false end
    union all
    select e.execution_id, e.namespace, e.lease_id, e.epoch, e.worker_id, e.worker_instance_id,
           e.lease_expires_at, e.attempt_index, e.ownership
    from ff.execution e
    where e.partition_key = p_partition_key
      and e.ownership in ('lease_expired_reclaimable', 'lease_revoked') and e.reclaim_at is null
      and e.line_id is null
      and case when e.ownership = 'lease_expired_reclaimable'
            then e.lease_expires_at <= v_as_of else false end
  ) c
  where (p_namespace is null or c.namespace = p_namespace)
    and (p_after_at is null
         or (c.lease_expires_at, c.execution_id) > (p_after_at, p_after_id))
  order by c.lease_expires_at, c.execution_id
  limit p_limit;
end;
$$;
