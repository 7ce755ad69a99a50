-- Return the position of each submitted item in the claim order, as a time. The position is null
-- for an item without a fair key.
--
-- Positions are counted separately for each lane and priority. The items of a fair key are put a
-- millisecond apart. They come after the last item of the same key, and never before the position
-- that claims have reached. So a key with few items waits for about one item of each other key,
-- however many items the other keys have. If a key has a weight w (ff.lane.weights), its items are
-- put 1/w millisecond apart.
--
-- No submit waits for another one. If another transaction is submitting with the same key, its
-- uncommitted items are ignored, and both submits can get the same positions.
drop function if exists ff._order_fairly;
create function ff._order_fairly(
  p_partition_key smallint,
  p_namespace     text,
  p_route_ids     bigint[],
  p_priorities    integer[],
  p_fair_keys     text[],
  p_now           timestamptz
)
returns timestamptz[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_positions timestamptz[] := array_fill(null::timestamptz, array[cardinality(p_fair_keys)]);
  v_group     record;
  v_first     timestamptz;
  v_step      interval;
begin
  for v_group in
    select r.lane, k.rank, u.key, array_agg(u.n order by u.n) as items,
           min((w.weights ->> u.key)::integer) as weight
    from unnest(p_fair_keys) with ordinality u(key, n)
    cross join lateral (
      select (9000 - least(greatest(coalesce(
                case when cardinality(p_priorities) = 1 then p_priorities[1]
                     else p_priorities[u.n] end, 0), 0), 9000))::smallint as rank) k
    cross join lateral (
      select x.lane from ff.route x
      where x.route_id = case when cardinality(p_route_ids) = 1 then p_route_ids[1]
                              else p_route_ids[u.n] end
        and x.namespace = p_namespace offset 0) r
    cross join lateral (
      select l.weights from ff.lane l
      where l.namespace = p_namespace and l.lane = r.lane offset 0) w
    where u.key is not null
    group by r.lane, k.rank, u.key
    order by r.lane, k.rank, u.key
  loop
    v_step := interval '1 millisecond' / coalesce(v_group.weight, 1);
    select greatest(
             coalesce((
               select f.last_at + v_step from ff.fair_key f
               where f.partition_key = p_partition_key and f.namespace = p_namespace
                 and f.lane = v_group.lane and f.rank = v_group.rank and f.key = v_group.key),
               '-infinity'),
             coalesce((
               select l.served_at from ff.fair_lane l
               where l.partition_key = p_partition_key and l.namespace = p_namespace
                 and l.lane = v_group.lane and l.rank = v_group.rank), '-infinity'))
      into v_first;
    if v_first = '-infinity' then
      v_first := p_now;
    end if;
    for v_nth in 1..cardinality(v_group.items) loop
      v_positions[v_group.items[v_nth]] := v_first + (v_nth - 1) * v_step;
    end loop;
    if pg_try_advisory_xact_lock(hashtextextended(concat_ws(
         ' ', 'ff.fair', p_partition_key, p_namespace, v_group.lane, v_group.rank, v_group.key),
         0)) then
      insert into ff.fair_key as f (partition_key, namespace, lane, rank, key, last_at)
      values (p_partition_key, p_namespace, v_group.lane, v_group.rank, v_group.key,
              v_first + (cardinality(v_group.items) - 1) * v_step)
      on conflict (partition_key, namespace, lane, rank, key) do update
        set last_at = greatest(f.last_at, excluded.last_at);
    end if;
    -- This row tells claims that the lane is fair.
    if not exists (
         select from ff.fair_lane l
         where l.partition_key = p_partition_key and l.namespace = p_namespace
           and l.lane = v_group.lane and l.rank = v_group.rank)
       and pg_try_advisory_xact_lock(hashtextextended(concat_ws(
         ' ', 'ff.fair', p_partition_key, p_namespace, v_group.lane, v_group.rank), 0)) then
      insert into ff.fair_lane (partition_key, namespace, lane, rank, served_at)
      values (p_partition_key, p_namespace, v_group.lane, v_group.rank, v_first)
      on conflict do nothing;
    end if;
  end loop;
  return v_positions;
end;
$$;
