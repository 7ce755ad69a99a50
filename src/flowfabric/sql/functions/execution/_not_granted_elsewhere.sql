-- Return the given executions that are not granted to another worker, in the same order. Expired
-- grants and grants to p_worker_id do not count.
--
-- The caller has locked the executions, so nobody can issue a grant meanwhile.
drop function if exists ff._not_granted_elsewhere;
create function ff._not_granted_elsewhere(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_worker_id     text,
  p_now           timestamptz
)
returns uuid[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  return array(
    select u.id from unnest(p_execution_ids) with ordinality u(id, n)
    where not exists (
      select from ff.grant g
      where g.partition_key = p_partition_key and g.execution_id = u.id
        and case when g.expires_at > p_now and g.worker_id <> p_worker_id
              then true else false end)
    order by u.n);
end;
$$;
