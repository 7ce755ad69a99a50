-- Mark expired leases, so that the next claim can reclaim their executions.
--
-- A renewal usually leaves due_at as it is, so a row can be due before its lease expires. This call
-- sets a later due_at for such a row. due_in is the time until the next row is due; a caller can
-- sleep that long.
--
-- Moves:    active leased -> active lease_expired_reclaimable (T19)
-- Refuses:  WF001 invalid_input
-- Locks:    executions in due order, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.expire_leases;
create function ff.expire_leases(p_partition_key smallint, p_limit integer default 500)
returns table (handled integer, due_in interval)
language plpgsql
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
  v_now     timestamptz := ff.now();
  v_expired uuid[];
  v_early   uuid[];
  v_routes  bigint[];
begin
  perform ff._check_pass(p_limit);
  select array_agg(d.execution_id) filter (where d.is_expired),
         array_agg(d.execution_id) filter (where not d.is_expired)
    into v_expired, v_early
  from (
    select e.execution_id, e.lease_expires_at <= greatest(v_now, e.transitioned_at) as is_expired
    from ff.execution e
    where e.partition_key = p_partition_key and e.due_at <= v_now
      -- Skip rows that are due only because of a deadline: ff.expire_executions handles them.
      and case when e.ownership = 'leased'
                and (e.lease_expires_at <= greatest(v_now, e.transitioned_at)
                     or least(e.lease_expires_at, e.deadline_at, e.attempt_deadline_at) > v_now)
            then true else false end
    order by e.due_at
    limit p_limit
    for no key update skip locked
  ) d;

  if v_expired is not null then
    perform ff._expire_leases(p_partition_key, v_expired, v_now);
    v_routes := array(
      select distinct e.route_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = any (v_expired));
    perform ff._hint_ready(p_partition_key, v_routes);
  end if;
  if v_early is not null then
    update ff.execution e
    set due_at = least(e.lease_expires_at, e.deadline_at, e.attempt_deadline_at)
    from (select p_partition_key as pk, u.id from unnest(v_early) u(id) offset 0) i
    where e.partition_key = i.pk and e.execution_id = i.id;
  end if;
  return query
  select coalesce(cardinality(v_expired), 0) + coalesce(cardinality(v_early), 0),
         (select e.due_at - v_now from ff.execution e
          where e.partition_key = p_partition_key and e.due_at > v_now
          order by e.due_at limit 1);
end;
$$;
