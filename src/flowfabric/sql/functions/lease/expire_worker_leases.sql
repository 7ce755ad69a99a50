-- Mark the leases of one worker instance as expired now. Call this function only if the instance is
-- dead. If the instance is alive after all, its next call is refused.
--
-- No index leads from a worker to its leases. So the call scans the executions that have a due_at,
-- earliest first, and may have to scan all of them.
--
-- Moves:    active leased -> active lease_expired_reclaimable (T19)
-- Refuses:  WF001 invalid_input
-- Locks:    executions in due order, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   operator
drop function if exists ff.expire_worker_leases;
create function ff.expire_worker_leases(
  p_partition_key      smallint,
  p_namespace          text,
  p_worker_instance_id text,
  p_limit              integer default 500
)
returns table (handled integer)
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
  v_now    timestamptz := ff.now();
  v_leased uuid[];
  v_routes bigint[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_pass(p_limit);
  if p_worker_instance_id is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'worker_instance_id', 'problem', 'must be given'));
  end if;
  v_leased := array(
    select l.execution_id
    from (
      select t.execution_id
      from (
        select e.execution_id, e.ownership, e.worker_instance_id, e.namespace
        from ff.execution e
        where e.partition_key = p_partition_key and e.due_at is not null
        order by e.due_at
      ) t
      where t.ownership = 'leased' and t.worker_instance_id = p_worker_instance_id
        and (p_namespace is null or t.namespace = p_namespace)
      limit p_limit
    ) c
    cross join lateral (
      select x.execution_id
      from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = c.execution_id
        and x.ownership = 'leased' and x.worker_instance_id = p_worker_instance_id
      for no key update skip locked
    ) l);
  if cardinality(v_leased) > 0 then
    update ff.execution e
    set lease_expires_at = greatest(v_now, e.transitioned_at),
        mutated_at = greatest(v_now, e.transitioned_at)
    from (select p_partition_key as pk, u.id from unnest(v_leased) u(id) offset 0) i
    where e.partition_key = i.pk and e.execution_id = i.id;
    perform ff._expire_leases(p_partition_key, v_leased, v_now);
    v_routes := array(
      select distinct e.route_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = any (v_leased));
    perform ff._hint_ready(p_partition_key, v_routes);
  end if;
  handled := cardinality(v_leased);
  return next;
end;
$$;
