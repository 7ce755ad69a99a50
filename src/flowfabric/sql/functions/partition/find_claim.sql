-- Find the partitions in which a claim has leased executions.
--
-- A caller that repeats a claim asks these partitions first, because ff.find_work no longer finds
-- the executions that the claim has leased.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.find_claim;
create function ff.find_claim(
  p_namespace          text,
  p_worker_instance_id text,
  p_claim_id           uuid
)
returns table (partition_key smallint)
language plpgsql
stable
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
  v_namespace constant text := coalesce(p_namespace, '');
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_claim('-', p_worker_instance_id, p_claim_id, '{}', 1, interval '1 second');
  return query
  select p.partition_key
  from ff.partition p
  join ff.claim_slot s on s.partition_key = p.partition_key
  where s.namespace = v_namespace and s.worker_instance_id = p_worker_instance_id
    and s.claim_id = p_claim_id;
end;
$$;
