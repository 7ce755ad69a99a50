-- Delete expired idempotency keys, and claim slots older than a day.
--
-- A key with the scope `unfinished` is valid until its execution has ended. If the execution is
-- unfinished at expires_at, the call keeps the key and sets its expires_at to an hour from now.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    keys in order of expiry, then claim slots, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.trim_keys;
create function ff.trim_keys(p_partition_key smallint, p_limit integer default 500)
returns table (handled integer, due_in interval)
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
  v_now timestamptz := ff.now();
begin
  perform ff._check_pass(p_limit);
  with due as materialized (
    select p_partition_key as pk, k.namespace, k.key, k.scope, k.execution_id
    from ff.idempotency_key k
    where k.partition_key = p_partition_key
      and k.expires_at > '-infinity' and k.expires_at <= v_now
    order by k.expires_at
    limit p_limit
    for update skip locked
  ),
  judged as materialized (
    select d.pk, d.namespace, d.key, d.scope = 'unfinished' and exists (
             select from ff.execution e
             where e.partition_key = d.pk and e.execution_id = d.execution_id
               and e.phase <> 'terminal'
             offset 0) as is_live
    from due d
    offset 0
  ),
  over as (
    delete from ff.idempotency_key k
    using judged j
    where not j.is_live
      and k.partition_key = j.pk and k.namespace = j.namespace and k.key = j.key
  ),
  moved as (
    update ff.idempotency_key k
    set expires_at = v_now + interval '1 hour'
    from judged j
    where j.is_live
      and k.partition_key = j.pk and k.namespace = j.namespace and k.key = j.key
  )
  select count(*) into handled from due;

  -- A claim is not repeated after a day.
  delete from ff.claim_slot s
  using (
    select p_partition_key as pk, x.namespace, x.worker_instance_id
    from ff.claim_slot x
    where x.partition_key = p_partition_key and x.claimed_at <= v_now - interval '1 day'
    limit p_limit
    for update skip locked
  ) o
  where s.partition_key = o.pk and s.namespace = o.namespace
    and s.worker_instance_id = o.worker_instance_id;

  due_in := (
    select k.expires_at - v_now from ff.idempotency_key k
    where k.partition_key = p_partition_key
      and k.expires_at > '-infinity' and k.expires_at > v_now
    order by k.expires_at limit 1);
  return next;
end;
$$;
