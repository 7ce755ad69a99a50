-- Bring gates and their lines up to date, if no claim has done this. This is a reconciler.
--
-- The call ends tickets of ff.check_admission that have expired, and subtracts releases (slots that
-- were given back) from the counters of gates. It opens the lines of gates and budgets that have
-- room, drops reservations that are no longer valid, and removes empty lines. If the clock went
-- back, it also corrects gates that would open much too late. It sends a hint to the workers of
-- open lines. If the login is bound to a namespace, the call handles only the gates of that
-- namespace.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    tickets, gates, budgets and lines, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.sweep_gates;
create function ff.sweep_gates(p_partition_key smallint, p_limit integer default 500)
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
  v_now     constant timestamptz := ff.now();
  v_bound   constant text := ff._read_bound_namespace();
  v_asked   bigint[];
  v_gates   bigint[];
  v_void    bigint[];
  v_budgets bigint[];
  v_routes  bigint[];
begin
  perform ff._check_pass(p_limit);
  handled := 0;
  with over as materialized (
    select k.gate_id, k.ticket_id from ff.gate_ticket k
    where k.partition_key = p_partition_key and k.expires_at <= v_now
      and case when v_bound is null then true else exists (
            select from ff.gate x
            where x.partition_key = p_partition_key and x.gate_id = k.gate_id
              and case when x.namespace = v_bound then true else false end offset 0) end
    order by k.expires_at
    limit p_limit
    for update skip locked
  ),
  ended as (
    delete from ff.gate_ticket k
    using over o
    where k.partition_key = p_partition_key and k.gate_id = o.gate_id and k.ticket_id = o.ticket_id
    returning k.gate_id
  )
  select array_agg(e.gate_id) into v_gates from ended e;
  if v_gates is not null then
    handled := cardinality(v_gates);
    insert into ff.gate_release (partition_key, gate_id, slots)
    select p_partition_key, u.id, count(*) from unnest(v_gates) u(id) group by u.id;
  end if;

  -- A gate opens within one window. If its opens_at is more than two windows ahead, the clock went
  -- back.
  perform ff._fold_releases(p_partition_key, null, v_now, v_bound);
  v_asked := array(
    select g.gate_id from ff.gate g
    where g.partition_key = p_partition_key and g.opens_at > v_now
      and g.opens_at > v_now + 2 * g.rate_window
      and case when v_bound is null or g.namespace = v_bound then true else false end
    order by g.opens_at desc
    limit p_limit);
  v_gates := ff._lock_gates(p_partition_key, v_asked, false);
  update ff.gate g set opens_at = v_now
  where g.partition_key = p_partition_key and g.gate_id = any (v_gates);
  -- Close each line that was open only for executions that resume, if it has none left.
  v_asked := array(
    select distinct y.gate_id
    from (select x.gate_id from ff.line x
          where x.partition_key = p_partition_key and x.route_id >= 0 and x.is_open
          limit p_limit) y
    where exists (
      select from ff.gate g
      where g.partition_key = p_partition_key and g.gate_id = y.gate_id
        and case when g.opens_at > v_now and (v_bound is null or g.namespace = v_bound)
              then true else false end offset 0));
  v_gates := ff._lock_gates(p_partition_key, v_asked, false);
  perform ff._write_lines(p_partition_key, v_gates, '{}', v_now);
  -- The empty release tells the next claim to look again at a gate whose reservation has ended.
  v_asked := array(
    select g.gate_id from ff.gate g
    where g.partition_key = p_partition_key and g.gate_id >= 0
      and num_nonnulls(g.reserved_for, g.start_for) > 0
      and case when v_bound is null or g.namespace = v_bound then true else false end
    limit p_limit);
  if v_asked <> '{}' then
    v_gates := ff._lock_gates(
      p_partition_key,
      ff._read_void_reservations(p_partition_key, v_asked, false, v_now)
      || ff._read_void_reservations(p_partition_key, v_asked, true, v_now), false);
    -- Read the reservations again, under the locks.
    v_void := ff._read_void_reservations(p_partition_key, v_gates, false, v_now);
    update ff.gate g set reserved_for = null
    where g.partition_key = p_partition_key and g.gate_id = any (v_void);
    v_void := ff._read_void_reservations(p_partition_key, v_gates, true, v_now);
    update ff.gate g set start_for = null, opens_at = least(g.opens_at, v_now)
    where g.partition_key = p_partition_key and g.gate_id = any (v_void);
    insert into ff.gate_release (partition_key, gate_id, slots)
    select p_partition_key, u.id, 0 from unnest(v_gates) u(id);
    handled := handled + cardinality(v_gates);
  end if;
  -- No execution waits for releases of gates without a line. They are counted here so that they do
  -- not pile up.
  v_asked := array(
    select r.gate_id
    from (select distinct w.gate_id
          from (select x.gate_id from ff.gate_release x
                where x.partition_key = p_partition_key order by x.gate_id limit 10 * p_limit) w
          offset 0) r
    where not exists (
      select from ff.line y
      where y.partition_key = p_partition_key and y.gate_id = r.gate_id offset 0)
      and case when v_bound is null then true else exists (
            select from ff.gate g
            where g.partition_key = p_partition_key and g.gate_id = r.gate_id
              and case when g.namespace = v_bound then true else false end offset 0) end
    limit p_limit);
  v_gates := ff._lock_gates(p_partition_key, v_asked, false);
  handled := handled + cardinality(v_gates);
  with given_back as (
    delete from ff.gate_release r
    where r.partition_key = p_partition_key and r.gate_id = any (v_gates)
    returning r.gate_id, r.slots
  )
  update ff.gate g set running = g.running - t.slots
  from (select p_partition_key as pk, b.gate_id, sum(b.slots)::integer as slots
        from given_back b group by b.gate_id offset 0) t
  where g.partition_key = t.pk and g.gate_id = t.gate_id and t.slots <> 0;

  -- A claim may have put an execution into the line of a budget that was opening at that moment.
  v_asked := array(
    select distinct y.gate_id from ff.line y
    where y.partition_key = p_partition_key and y.gate_id >= 4611686018427387904
      and not y.is_open);
  v_budgets := ff._lock_open_budgets(v_asked, v_bound);
  for v_nth in 1..cardinality(v_budgets) loop
    perform ff._set_lines(p_partition_key, v_budgets[v_nth], true);
    handled := handled + 1;
  end loop;
  handled := handled + ff._drop_lines(p_partition_key, p_limit, v_bound);

  -- A worker that sleeps does not know that a line has opened.
  v_routes := array(
    select distinct y.route_id from (
      select x.route_id from ff.line x
      where x.partition_key = p_partition_key and x.is_open and x.route_id >= 0 limit 100) y);
  if v_routes <> '{}' then
    perform ff._hint_ready(p_partition_key, v_routes);
  end if;
  handled := least(handled, p_limit);
  due_in := (
    select least(
      (select k.expires_at - v_now from ff.gate_ticket k
       where k.partition_key = p_partition_key order by k.expires_at limit 1),
      (select g.opens_at - v_now from ff.gate g
       where g.partition_key = p_partition_key and g.opens_at > v_now
       order by g.opens_at limit 1)));
  return next;
end;
$$;
