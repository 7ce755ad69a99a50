-- Read the downstreams that still have an earlier result of an upstream, although the upstream was
-- replayed and has succeeded again. Downstreams that have started are left out.
drop function if exists ff._read_stale_inputs;
create function ff._read_stale_inputs(p_partition_key smallint, p_ended_ids uuid[])
returns table (upstream_id uuid, downstream_id uuid)
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select u.id, g.downstream_id
  from unnest(p_ended_ids) u(id)
  cross join lateral (
    select e.execution_id from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = u.id
      and case when e.outcome = 'success' then true else false end
    offset 0
  ) x
  cross join lateral (
    select o.downstream_id from ff.edge o
    where o.partition_key = p_partition_key and o.upstream_id = x.execution_id
      and o.kept_version is not null
    offset 0) g
  cross join lateral (
    select e.total_attempt_count from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = g.downstream_id
    offset 0) d
  where d.total_attempt_count = 0;
end;
$$;
