-- Hint to holders that their leases have just been taken away, so that the holders stop. A hint
-- names only the worker instance, because every role that can connect can read hints. The caller
-- has ended the leases.
drop function if exists ff._hint_lease_lost;
create function ff._hint_lease_lost(p_partition_key smallint, p_execution_ids uuid[])
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  if p_execution_ids is not null then
    perform pg_notify('ff_lost', w.worker_instance_id)
    from (
      select distinct e.last_worker_instance_id as worker_instance_id
      from unnest(p_execution_ids) u(execution_id)
      cross join lateral (
        select x.last_worker_instance_id from ff.execution x
        where x.partition_key = p_partition_key and x.execution_id = u.execution_id
        offset 0) e) w
    where w.worker_instance_id is not null;
  end if;
end;
$$;
