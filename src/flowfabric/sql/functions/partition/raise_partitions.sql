-- Raise the number of partitions. It can never be lowered: ids name their partition.
--
-- All processes look into the new partitions at once; new ids use them after p_rest, when every
-- process has read the new number. A database that nobody has used needs no rest.
--
-- A key is searched in the partition that its text chooses, so the number that keys use is raised
-- only while no key is stored: if nothing was ever submitted, or if p_keys asks for it. In both cases
-- no process may submit with a key until all have read the new number: a key that one of them stores
-- by the old number is not found by the others, and is used twice.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden
-- Locks:    the row of the number; if there was one partition, all quotas, waiting up to 2 s
-- Replay:   `unchanged`
-- Rights:   operator
drop function if exists ff.raise_partitions;
create function ff.raise_partitions(
  p_partitions integer,
  p_keys       boolean default false,
  p_rest       interval default '30 seconds'
)
returns table (
  outcome           text,
  partitions        integer,
  minted_partitions integer,
  keyed_partitions  integer,
  rests_for         interval
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  -- The clock of the server: processes read the number by their own clocks.
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
  select m.value::integer into v_before from ff.meta m where m.name = 'partitions' for update;
  select i.minted_partitions, i.keyed_partitions, i.is_distributed
    into v_minted, v_keyed, v_is_distributed
  from ff.installation i limit 1;
  -- There a partition has a generation of events with a node before anything writes in it.
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
  elsif p_rest is null or p_rest not between interval '0' and interval '1 day' then
    v_field := 'rest'; v_problem := 'must be between zero and one day';
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
    -- Null if there is no rest.
    v_raised_at := case when not v_is_unused and p_rest > interval '0' then v_now + p_rest end;
    insert into ff.partition (partition_key)
    select g.n::smallint from generate_series(v_before, p_partitions - 1) g(n);
    if v_before = 1 then
      -- Nobody makes a gate meanwhile. Gates that exist keep their limits: the other partitions
      -- start without a share.
      if not v_is_distributed then
        lock table ff.quota in exclusive mode;
      end if;
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
