-- Raise the number of partitions. It can never be lowered, because every id contains the number of
-- its partition.
--
-- Queries over all partitions include the new partitions immediately. New ids use the new
-- partitions only after p_grace, because until then there may be processes that do not know the new
-- number yet. In an unused database, new ids use the new partitions immediately.
--
-- The partition of an idempotency key is computed from the key and from another number,
-- keyed_partitions. This call raises keyed_partitions, too, if p_keys is true or if the database is
-- unused. A call that would raise keyed_partitions while keys are stored is refused, because the
-- stored keys would not be found any more. After keyed_partitions was raised, a submit that chose
-- its partition by the old number is refused (ff._reserve_keys), so no key is used twice.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden
-- Locks:    the table of idempotency keys, if p_keys is true or no execution is stored; the row
--           with the number of partitions; the table of quotas, if there was only one partition.
--           The call waits up to 2 s for each lock. On Citus it locks these tables on all nodes,
--           and may wait longer for the locks of other nodes
-- Repeat:   `unchanged`
-- Rights:   operator
drop function if exists ff.raise_partitions;
create function ff.raise_partitions(
  p_partitions integer,
  p_keys       boolean default false,
  p_grace      interval default '30 seconds'
)
returns table (
  outcome           text,
  partitions        integer,
  minted_partitions integer,
  keyed_partitions  integer,
  grace_left        interval
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  -- v_now is real time and not ff.now(), because processes decide by real time when to read the
  -- number.
  v_now            timestamptz;
  v_before         integer;
  v_minted         integer;
  v_keyed          integer;
  v_is_distributed boolean;
  v_begun          integer := 32767;
  v_is_unused      boolean;
  v_has_keys       boolean;
  v_raised_at      text;
  v_field          text;
  v_problem        text;
begin
  perform ff._check_operator('raise_partitions');
  v_is_distributed := (select i.is_distributed from ff.installation i limit 1);
  if p_keys or not exists (
       select 1 from ff.partition p join ff.execution e on e.partition_key = p.partition_key) then
    lock table ff.idempotency_key in access exclusive mode;
  end if;
  select m.value::integer into v_before from ff.meta m where m.name = 'partitions' for update;
  select i.minted_partitions, i.keyed_partitions into v_minted, v_keyed
  from ff.installation i limit 1;
  -- On Citus, nothing may be written to a partition before its generation of events names a node.
  if v_is_distributed then
    select count(*) into v_begun
    from ff.event_generation g
    where g.partition_key < p_partitions and g.node_id is not null;
  end if;
  v_now := clock_timestamp();
  v_has_keys := exists (
    select 1 from ff.partition p
    join ff.idempotency_key k on k.partition_key = p.partition_key);
  v_is_unused := not v_has_keys
    and not exists (
      select 1 from ff.partition p
      join ff.execution e on e.partition_key = p.partition_key)
    and not exists (
      select 1 from ff.partition p
      join ff.flow f on f.partition_key = p.partition_key);
  if p_partitions is null or p_partitions not between 1 and 32767 then
    v_field := 'partitions'; v_problem := 'must be 1 to 32767';
  elsif p_partitions < v_before then
    v_field := 'partitions';
    v_problem := format('there are %s, and the number can only be raised', v_before);
  elsif ff._is_within(p_grace, interval '0', interval '1 day') is not true then
    v_field := 'grace'; v_problem := 'must be between zero and one day';
  elsif p_keys and v_has_keys and v_keyed < p_partitions then
    v_field := 'keys';
    v_problem := 'idempotency keys are stored, and would not be found any more';
  elsif p_partitions > greatest(v_before, v_begun) then
    v_field := 'partitions';
    v_problem := format('the tables are distributed: type flowfabric db distribute --partitions %s',
                        p_partitions);
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_field, 'problem', v_problem));
  end if;
  if p_partitions > v_before then
    -- This is null if new ids use the new partitions at once.
    v_raised_at := case when not v_is_unused and p_grace > interval '0' then v_now + p_grace end;
    insert into ff.partition (partition_key)
    select g.n::smallint from generate_series(v_before, p_partitions - 1) g(n);
    if v_before = 1 then
      -- Until this transaction ends, no gate can be created. Existing gates keep their whole
      -- limits; the other partitions start without a share.
      lock table ff.quota in exclusive mode;
      insert into ff.gate_share (gate_id, share_no, namespace, quota, key, concurrency, rate)
      select g.gate_id, n, g.namespace, g.quota, g.key,
             case when n = 0 or g.max_running is null then g.max_running else 0 end,
             case when n = 0 or g.rate is null then g.rate else 0 end
      from ff.gate g
      cross join generate_series(0, p_partitions - 1) n
      where g.partition_key = 0;
    end if;
    update ff.meta m set value = case
        when m.name = 'partitions' then p_partitions::text
        when m.name = 'partitions_before' then v_minted::text
        else v_raised_at end
    where m.name in ('partitions', 'partitions_before', 'partitions_raised_at');
  end if;
  if p_keys or v_is_unused then
    update ff.meta m set value = p_partitions::text where m.name = 'partitions_of_keys';
  end if;
  return query
  select case when p_partitions = v_before and i.keyed_partitions = v_keyed then 'unchanged'
              else 'raised' end,
         i.partitions, i.minted_partitions, i.keyed_partitions,
         greatest(interval '0', (
           select m.value::timestamptz from ff.meta m where m.name = 'partitions_raised_at') - v_now)
  from ff.installation i limit 1;
end;
$$;
