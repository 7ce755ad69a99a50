-- Give back the slots of executions whose leases end in this transaction. Returns the executions
-- that have a stream, so that the caller can close the streams without another read.
--
-- The call inserts rows into ff.gate_release and locks nothing. Every function that ends a lease
-- calls this function or ff._release_slots.
drop function if exists ff._release_gates;
create function ff._release_gates(p_partition_key smallint, p_execution_ids uuid[])
returns uuid[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_gates     bigint[];
  v_streaming uuid[];
begin
  select array_agg(g.id) filter (where g.id is not null),
         array_agg(distinct u.id) filter (where x.has_stream)
    into v_gates, v_streaming
  from unnest(p_execution_ids) u(id)
  cross join lateral (
    select e.quota_ids, e.has_stream from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = u.id offset 0) x
  left join lateral unnest(x.quota_ids) g(id) on true;
  perform ff._release_slots(p_partition_key, coalesce(v_gates, '{}'));
  return v_streaming;
end;
$$;
