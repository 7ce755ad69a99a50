-- Close waitpoints that have expired. Once a wait for a waitpoint was opened, the waitpoint no
-- longer expires. due_in is the time until the next waitpoint expires.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    waitpoints in order of expires_at, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
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
  v_now        timestamptz := ff.now();
  v_executions uuid[] := '{}';
  v_ids        uuid[] := '{}';
  v_row        record;
begin
  perform ff._check_pass(p_limit);
  for v_row in
    select w.execution_id, w.waitpoint_id from ff.waitpoint w
    where w.partition_key = p_partition_key and w.closed_at is null and w.activated_at is null
      and w.expires_at <= v_now
    order by w.expires_at
    limit p_limit
    for no key update skip locked
  loop
    v_executions := v_executions || v_row.execution_id;
    v_ids := v_ids || v_row.waitpoint_id;
  end loop;
  update ff.waitpoint w set closed_at = v_now, close_reason = 'never_committed'
  from (
    select p_partition_key as pk, u.execution_id, u.waitpoint_id
    from unnest(v_executions, v_ids) u(execution_id, waitpoint_id)
    offset 0) i
  where w.partition_key = i.pk and w.execution_id = i.execution_id
    and w.waitpoint_id = i.waitpoint_id and w.closed_at is null and w.activated_at is null
    and w.expires_at <= v_now;
  return query
  select cardinality(v_ids),
         (select w.expires_at - v_now from ff.waitpoint w
          where w.partition_key = p_partition_key and w.closed_at is null
            and w.activated_at is null and w.expires_at > v_now
          order by w.expires_at limit 1);
end;
$$;
