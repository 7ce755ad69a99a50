-- Reserve the idempotency keys of a batch of submits, in key order. Returns verdicts on items that
-- must not be stored: duplicate (with the id of the first execution), key_reused, busy, or invalid
-- (key_partitions is outdated).
--
-- The unique index guarantees that a key is stored once. The call uses an advisory lock to find out,
-- without waiting, whether another open transaction is storing the same key. So a batch never waits
-- for one item. If the key of an item is stored already, the item takes no lock, so concurrent
-- repeats do not hinder each other.
--
-- A key of scope `window` is free again when its window is over. A key of scope `unfinished` is
-- free again when its execution has ended.
--
-- The partition of a key depends on the number of partitions, so all callers must use the same
-- number. Otherwise two executions with the same key could be stored in two partitions. Each caller
-- gives its number as key_partitions, and an item with an outdated number is refused.
-- ff.raise_partitions can change the number only while no other transaction uses the table of keys.
-- This function reads that table. So the number cannot change before the caller's transaction has
-- ended.
drop function if exists ff._reserve_keys;
create function ff._reserve_keys(
  p_partition_key smallint,
  p_namespace     text,
  p_skip          integer[],
  p_execution_ids uuid[],
  p_options       jsonb[]
)
returns ff.verdict[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
  v_refused ff.verdict[];
  v_taken   integer[];
  v_item    record;
  v_first   record;
  v_now     timestamptz := ff.now();
  v_keyed   integer;
  v_moved   ff.verdict[];
begin
  select coalesce(array_agg(row(
           u.n, k.execution_id,
           case when k.fingerprint = u.fingerprint then 'duplicate' else 'key_reused' end,
           null, null,
           case when k.fingerprint <> u.fingerprint
             then jsonb_build_object('field', 'key', 'key', u.key) end)::ff.verdict), '{}'),
         coalesce(array_agg(u.n::integer), '{}')
    into v_refused, v_taken
  from (select i.o ->> 'key' as key, decode(i.o ->> 'key_fingerprint', 'hex') as fingerprint, i.n
        from unnest(p_options) with ordinality i(o, n)
        where i.o ->> 'key' is not null and i.n <> all (p_skip)) u
  cross join lateral (
    select k.execution_id, k.fingerprint
    from ff.idempotency_key k
    where k.partition_key = p_partition_key and k.namespace = p_namespace and k.key = u.key
      and case k.scope
            when 'window' then k.expires_at > v_now
            else coalesce((
              select e.phase <> 'terminal' from ff.execution e
              where e.partition_key = p_partition_key and e.execution_id = k.execution_id),
              false) end
    offset 0) k;

  if exists (select from unnest(p_options) u(o) where u.o ->> 'key_partitions' is not null) then
    if current_setting('transaction_isolation') = 'read committed' then
      select m.value::integer into v_keyed from ff.meta m where m.name = 'partitions_of_keys';
    else
      -- The snapshot may be older than the last call of ff.raise_partitions. Then the lock fails
      -- with 40001.
      select m.value::integer into v_keyed
      from ff.meta m where m.name = 'partitions_of_keys' for share;
    end if;
    -- A repeated submit whose first call was stored in this partition is a duplicate, even if its
    -- number is outdated.
    v_moved := array(
      select row(u.n, u.id, 'invalid', null, null, jsonb_build_object(
               'field', 'key_partitions', 'problem', format(
                 'keys use %s partitions now: read keyed_partitions of ff.installation again, and '
                 'choose the partition of the key by it', v_keyed)))::ff.verdict
      from unnest(p_execution_ids, p_options) with ordinality u(id, o, n)
      where u.o ->> 'key' is not null and (u.o ->> 'key_partitions')::integer <> v_keyed
        and u.n <> all (p_skip) and u.n <> all (v_taken)
        and not exists (
          select from ff.execution e
          where e.partition_key = p_partition_key and e.execution_id = u.id offset 0));
    v_refused := v_refused || v_moved;
    v_taken := v_taken || array(select m.item from unnest(v_moved) m);
  end if;

  for v_item in
    select u.id, u.o ->> 'key' as key, decode(u.o ->> 'key_fingerprint', 'hex') as fingerprint,
           coalesce(u.o ->> 'key_scope', 'window')::ff.key_scope as scope,
           coalesce(interval '1 millisecond' * (u.o ->> 'key_window_ms')::double precision,
                    interval '1 day') as wnd,
           u.n::integer as n,
           -- with a window of 0 the key is not stored
           coalesce((u.o ->> 'key_window_ms')::numeric > 0, true)
             or coalesce(u.o ->> 'key_scope' = 'unfinished', false) as is_kept
    from unnest(p_execution_ids, p_options) with ordinality u(id, o, n)
    where u.o ->> 'key' is not null and u.n <> all (p_skip) and u.n <> all (v_taken)
    order by u.o ->> 'key' collate "C", u.n
  loop
    if v_item.is_kept and not pg_try_advisory_xact_lock(hashtextextended(
             concat_ws(E'\x01', 'ff.idempotency_key', p_partition_key, p_namespace, v_item.key), 0))
    then
      v_refused := v_refused
        || row(v_item.n, v_item.id, 'busy', null, null, null)::ff.verdict;
      continue;
    end if;
    v_now := ff.now();
    select k.execution_id, k.fingerprint,
           case k.scope
             when 'window' then k.expires_at > v_now
             -- an earlier item of this call may have stored its key but not its row yet
             else coalesce((
               select e.phase <> 'terminal' from ff.execution e
               where e.partition_key = p_partition_key and e.execution_id = k.execution_id),
               k.execution_id = any (p_execution_ids)) end as is_live
      into v_first
    from ff.idempotency_key k
    where k.partition_key = p_partition_key and k.namespace = p_namespace and k.key = v_item.key
      -- an item that does not store its key is compared only with earlier items of this call
      and (v_item.is_kept or k.execution_id = any (p_execution_ids))
    for update;
    if found and v_first.is_live then
      v_refused := v_refused || case
        when v_first.fingerprint = v_item.fingerprint then
          row(v_item.n, v_first.execution_id, 'duplicate', null, null, null)::ff.verdict
        else row(v_item.n, v_first.execution_id, 'key_reused', null, null,
                 jsonb_build_object('field', 'key', 'key', v_item.key))::ff.verdict end;
      continue;
    end if;
    -- If the id is taken, the item is not created, so its key is not stored either.
    if v_item.is_kept
       and not exists (
         select from ff.execution e
         where e.partition_key = p_partition_key and e.execution_id = v_item.id) then
      insert into ff.idempotency_key as k (
        partition_key, namespace, key, execution_id, scope, fingerprint, expires_at)
      values (p_partition_key, p_namespace, v_item.key, v_item.id, v_item.scope,
              v_item.fingerprint, v_now + v_item.wnd)
      on conflict (partition_key, namespace, key) do update
        set execution_id = excluded.execution_id,
            scope = excluded.scope,
            fingerprint = excluded.fingerprint,
            expires_at = excluded.expires_at;
    end if;
  end loop;
  return v_refused;
end;
$$;
