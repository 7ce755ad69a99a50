-- Give back the slots of executions whose leases end in this transaction: insert releases, lock
-- nothing. Every function that ends a lease calls this, or ff._release_slots.
drop function if exists ff._release_gates;
create function ff._release_gates(p_partition_key smallint, p_execution_ids uuid[])
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
  v_gates constant bigint[] := array(
    select g.id from unnest(p_execution_ids) u(id)
    cross join lateral (
      select e.quota_ids from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id offset 0) x
    cross join lateral unnest(x.quota_ids) g(id));
begin
  perform ff._release_slots(p_partition_key, v_gates);
end;
$$;
