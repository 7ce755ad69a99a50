-- How far a flow is: how many members are in which state, and what they make of it (open, running,
-- blocked, completed, failed, cancelled). Counted now, member by member: there is nothing that could be
-- behind. No row if there is no such flow.
--
-- Moves:    nothing
-- Refuses:  (nothing)
-- Locks:    none
-- Replay:   a read
-- Rights:   app
drop function if exists ff.summarise_flow;
create function ff.summarise_flow(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid
)
returns table (state text, total integer, counts jsonb)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  return query
  select c.state, c.total, c.counts
  from ff.flow f
  cross join lateral ff._count_members(
    p_partition_key, f.flow_id, f.cancelled_at is not null) c
  where f.partition_key = p_partition_key and f.flow_id = p_flow_id
    and case when p_namespace is null then true else f.namespace = p_namespace end;
end;
$$;
