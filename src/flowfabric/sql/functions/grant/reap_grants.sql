-- Delete expired grants, and hint to workers that the executions can be claimed.
--
-- No claim waits for this call, because claims ignore expired grants. due_in is the time until the
-- next grant expires; a caller can sleep that long.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    grants in order of expiry, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.reap_grants;
create function ff.reap_grants(p_partition_key smallint, p_limit integer default 500)
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
  v_now    timestamptz := ff.now();
  v_over   uuid[];
  v_routes bigint[];
begin
  perform ff._check_pass(p_limit);
  with over as materialized (
    select p_partition_key as pk, g.execution_id
    from ff.grant g
    where g.partition_key = p_partition_key and g.expires_at > '-infinity'
      and g.expires_at <= v_now
    order by g.expires_at
    limit p_limit
    for update skip locked
  ),
  reaped as (
    delete from ff.grant g
    using over o
    where g.partition_key = o.pk and g.execution_id = o.execution_id
    returning g.execution_id
  )
  select array_agg(r.execution_id) into v_over from reaped r;

  if v_over is not null then
    v_routes := (
      select array_agg(distinct e.route_id)
      from unnest(v_over) u(id)
      cross join lateral (
        select x.route_id from ff.execution x
        where x.partition_key = p_partition_key and x.execution_id = u.id
          and case when (x.phase = 'runnable' and x.eligibility = 'eligible_now')
                     or (x.ownership in ('lease_expired_reclaimable', 'lease_revoked')
                         and x.reclaim_at is null)
                then true else false end
        offset 0) e);
    perform ff._hint_ready(p_partition_key, v_routes);
  end if;
  return query
  select coalesce(cardinality(v_over), 0),
         (select g.expires_at - v_now from ff.grant g
          where g.partition_key = p_partition_key and g.expires_at > '-infinity'
            and g.expires_at > v_now
          order by g.expires_at limit 1);
end;
$$;
