-- Count the members of a flow in each state, and derive the state of the flow from them (open,
-- running, blocked, completed, failed, cancelled). Members are counted at the time of the call, so
-- the answer is never stale. Returns no row if the flow does not exist.
--
-- Moves:    nothing
-- Refuses:  (nothing)
-- Locks:    none
-- Repeat:   a read
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
declare
  v_is_cancelled boolean;
begin
  perform ff._check_namespace(p_namespace);
  select f.cancelled_at is not null into v_is_cancelled
  from ff.flow f
  where f.partition_key = p_partition_key and f.flow_id = p_flow_id
    and case when p_namespace is null then true else f.namespace = p_namespace end;
  if found then
    return query
    select c.state, c.total, c.counts
    from ff._count_members(p_partition_key, p_flow_id, v_is_cancelled) c;
  end if;
end;
$$;
