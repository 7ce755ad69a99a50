-- Close the streams of executions that end, or whose leases end, in this transaction. Every
-- function that ends a lease calls this. The caller has locked and updated the executions.
--
-- The call waits for an append in flight. So every frame of the lease is stored before the end of
-- the lease commits, and no frame can follow. An append never waits for this call; it returns
-- `busy`.
drop function if exists ff._close_streams;
create function ff._close_streams(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_end           ff.lease_end,
  p_now           timestamptz
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_ids  uuid[];
  v_over boolean[];
begin
  select array_agg(u.id), array_agg(x.is_over) into v_ids, v_over
  from unnest(p_execution_ids) u(id)
  cross join lateral (
    select e.has_stream, e.phase = 'terminal' as is_over from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = u.id
    offset 0) x
  where x.has_stream;
  if v_ids is null then
    return;
  end if;
  update ff.stream s set
    lease_id = null,
    closed_at = case when s.lease_id is not null or i.is_over then p_now else s.closed_at end,
    close_reason = case when s.lease_id is not null or i.is_over then p_end
                        else s.close_reason end,
    expires_at = case when i.is_over and s.retention is not null
                   then (p_now at time zone 'UTC' + s.retention) at time zone 'UTC'
                   else s.expires_at end
  from (
    select p_partition_key as pk, u.id, u.is_over from unnest(v_ids, v_over) u(id, is_over)
    offset 0) i
  where s.partition_key = i.pk and s.execution_id = i.id;
  -- Send hints to the readers of the executions that end here. A hint has a digest of the id, as in
  -- client/frames.py, and not the id itself, because every login may listen.
  v_ids := array(select u.id from unnest(v_ids, v_over) u(id, is_over) where u.is_over);
  if v_ids <> '{}' then
    perform pg_notify('ff_stream', concat(p_partition_key, ' ', case
      when cardinality(v_ids) > 300 then '*'
      else (select string_agg(encode(substr(sha256(uuid_send(u.id)), 1, 9), 'base64'), '')
            from unnest(v_ids) u(id)) end));
  end if;
end;
$$;
