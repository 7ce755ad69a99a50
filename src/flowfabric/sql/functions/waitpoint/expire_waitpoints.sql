-- Close waitpoints that nobody waits for, when their time is over. One that a wait was opened for
-- is never touched. due_in is the time until the next one is due.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    waitpoints, skipping locked ones
-- Replay:   a second call finds nothing left to do
-- Rights:   app
drop function if exists ff.expire_waitpoints;
create function ff.expire_waitpoints(p_partition_key smallint, p_limit integer default 500)
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
  v_now timestamptz := ff.now();
  v_ids uuid[];
begin
  perform ff._check_pass(p_limit);
  v_ids := array(
    select w.waitpoint_id from ff.waitpoint w
    where w.partition_key = p_partition_key and w.closed_at is null and w.activated_at is null
      and w.expires_at <= v_now
    order by w.expires_at
    limit p_limit
    for no key update skip locked);
  update ff.waitpoint w set closed_at = v_now, close_reason = 'never_committed'
  where w.partition_key = p_partition_key and w.waitpoint_id = any (v_ids)
    and w.closed_at is null and w.activated_at is null and w.expires_at <= v_now;
  return query
  select cardinality(v_ids),
         (select w.expires_at - v_now from ff.waitpoint w
          where w.partition_key = p_partition_key and w.closed_at is null
            and w.activated_at is null and w.expires_at > v_now
          order by w.expires_at limit 1);
end;
$$;
