-- Take slots of gates for executions that start their first attempt: all slots or none. Return null
-- if the call took all slots. Otherwise return the gates that the call has locked: p_gate_ids, or
-- an empty array if a budget is shut or does not exist.
--
-- The call takes no slot if a gate does not have enough room for all executions, if a gate has a
-- reservation, if a budget is shut, or if a gate or a budget does not exist. p_gate_ids must be in
-- ascending order. Budgets come last, because they have the highest ids. Budgets are read and not
-- locked. p_asked says how many executions need each gate.
--
-- The transaction has locked no gate before this call, so this call can wait for gates. The update
-- that takes the slots also locks the gates, which costs less than a separate locking statement. If
-- the counter of a gate says that the gate is full, the call subtracts the slots that were given
-- back, and checks again.
--
-- Locks: gates in id order; waits for each
drop function if exists ff._take_slots;
create function ff._take_slots(
  p_partition_key smallint,
  p_gate_ids      bigint[],
  p_asked         integer[],
  p_now           timestamptz
)
returns bigint[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_full   bigint[];
  v_rated  bigint[];
  v_quotas integer;
  v_locked integer;
  v_is_out boolean;
begin
  v_quotas := width_bucket(4611686018427387903, p_gate_ids);
  -- Only read the budgets, without locks: a claim never waits for a report of usage. A missing
  -- budget admits nothing.
  if v_quotas < cardinality(p_gate_ids) and (
       select count(*) from ff.budget b
       where b.budget_id = any (p_gate_ids[v_quotas + 1:]) and not b.is_shut)
     < cardinality(p_gate_ids) - v_quotas then
    return '{}';
  end if;
  with took as (
    update ff.gate g set running = g.running + t.asked
    from (select p_partition_key as pk, u.id, u.asked
          from unnest(p_gate_ids[:v_quotas], p_asked[:v_quotas]) u(id, asked)
          order by u.id offset 0) t
    where g.partition_key = t.pk and g.gate_id = t.id
    returning g.gate_id, g.running, g.max_running, g.rate,
              num_nonnulls(g.reserved_for, g.start_for) > 0 as is_reserved
  )
  select array_agg(k.gate_id) filter (where k.running > coalesce(k.max_running, 1000)),
         array_agg(k.gate_id) filter (where k.rate is not null),
         bool_or(k.is_reserved), count(*)
    into v_full, v_rated, v_is_out, v_locked
  from took k;
  -- A gate with a reservation is left to _admit_to_gates. A missing gate admits nothing.
  v_is_out := coalesce(v_is_out, false) or v_locked <> v_quotas;
  if v_full is not null then
    with given_back as (
      delete from ff.gate_release r
      where r.partition_key = p_partition_key and r.gate_id = any (v_full)
      returning r.gate_id, r.slots
    )
    update ff.gate g set running = g.running - t.slots
    from (select p_partition_key as pk, b.gate_id, sum(b.slots)::integer as slots
          from given_back b group by b.gate_id offset 0) t
    where g.partition_key = t.pk and g.gate_id = t.gate_id;
    v_full := array(
      select x.gate_id from unnest(v_full) u(id)
      cross join lateral (
        select g.gate_id from ff.gate g
        where g.partition_key = p_partition_key and g.gate_id = u.id
          and case when g.running > g.max_running then true else false end offset 0) x);
  end if;
  if v_rated is not null then
    v_full := v_full || array(
      select u.id from unnest(p_gate_ids, p_asked) u(id, asked)
      cross join lateral (
        select g.rate, g.rate_window, g.slices, g.slice_base from ff.gate g
        where g.partition_key = p_partition_key and g.gate_id = u.id offset 0) x
      -- If the slices are malformed, the gate has no room for a start.
      where u.id = any (v_rated) and (u.asked <= x.rate - (
        select case when count(s.n) = 62 then sum(s.n) end from unnest(ff._roll_slices(
          x.slices, x.slice_base, ff._newest_slice(x.slice_base, x.rate_window, p_now))) s(n)))
        is not true);
  end if;
  if v_is_out or v_full <> '{}' then
    update ff.gate g set running = g.running - t.asked
    from (select p_partition_key as pk, u.id, u.asked
          from unnest(p_gate_ids, p_asked) u(id, asked) offset 0) t
    where g.partition_key = t.pk and g.gate_id = t.id;
    return p_gate_ids;
  end if;
  for v_nth in 1..coalesce(cardinality(v_rated), 0) loop
    perform ff._count_starts(
      p_partition_key, v_rated[v_nth], p_asked[array_position(p_gate_ids, v_rated[v_nth])], p_now);
  end loop;
  if exists (select from ff.line y where y.partition_key = p_partition_key) then
    perform ff._write_lines(p_partition_key, p_gate_ids, '{}', p_now);
  end if;
  return null;
end;
$$;
