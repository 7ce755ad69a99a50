-- Remove the frames of streams that have expired. A reconciler calls this.
--
-- A stream with a retention in its stream policy expires when the retention has passed since the
-- end of the execution. A stream that has only best-effort frames expires when twice the ttl of
-- its last append has passed since that append. If such a stream also has a retention, the ttl
-- counts only until the execution ends. No other stream expires. The summary stays. due_in is the
-- time until the next stream expires.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    streams in the order of their expiry, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.expire_streams;
create function ff.expire_streams(p_partition_key smallint, p_limit integer default 500)
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
    select s.execution_id from ff.stream s
    where s.partition_key = p_partition_key and s.expires_at <= v_now
    order by s.expires_at
    limit p_limit
    for no key update skip locked);
  delete from ff.stream_chunk c
  using (select p_partition_key as pk, u.id from unnest(v_ids) u(id) offset 0) i
  where c.partition_key = i.pk and c.execution_id = i.id;
  update ff.stream s set
    expires_at = null,
    stored_bytes = 0,
    trimmed_count = s.durable_count,
    -- The floor rises only for durable frames: readers need not learn that best-effort frames are
    -- gone.
    floor_ms = case when s.durable_count > s.trimmed_count then s.last_ms else s.floor_ms end,
    floor_seq = case when s.durable_count > s.trimmed_count then s.last_seq + 1
                     else s.floor_seq end
  from (select p_partition_key as pk, u.id from unnest(v_ids) u(id) offset 0) i
  where s.partition_key = i.pk and s.execution_id = i.id;
  return query
  select cardinality(v_ids),
         (select s.expires_at - v_now from ff.stream s
          where s.partition_key = p_partition_key and s.expires_at is not null
          order by s.expires_at limit 1);
end;
$$;
