-- Admit the locked candidates of a claim to their gates, in the order of p_execution_ids. A
-- candidate that finds no room is put into the line of the gate that refused it.
--
-- An admitted candidate takes a slot of each of its quotas. If it begins a new attempt, it also
-- takes a start. The caller then leases the candidate, or gives the slots back. If another
-- transaction has locked a gate of a candidate, the candidate stays as it is.
--
-- `closed` lists the gates and budgets that refused a candidate. `filled` lists the budgets in
-- `closed`, and the gates in `closed` that have no free slot. These budgets and gates also refuse
-- an execution that resumes its attempt. All other gates in `closed` refuse only new starts.
--
-- p_picked are executions that the claim has admitted before and will lease. p_locked are the gates
-- that this transaction has locked. If p_locked is null, the transaction has locked no gate, and
-- this call waits for gates. Otherwise it does not wait.
--
-- A candidate under several quotas can be refused again and again. After five refusals it makes
-- reservations at gates of its other quotas, where there is room. It can reserve a start
-- (ff.gate.start_for) and a slot (ff.gate.reserved_for). No other execution gets a reserved start
-- or slot. A gate keeps at most one start and one slot reserved.
--
-- What a candidate reserves depends on the gate that refused it. If this gate has no free slot,
-- the candidate reserves starts at all its other gates, and slots at gates with lower ids. If this
-- gate has no room for a start, the candidate reserves starts at gates with lower ids. It also
-- reserves slots at these gates if the window of the rate is at most a minute; with a longer
-- window, a reserved slot could be idle for hours.
--
-- No execution waits for ever, because all executions reserve in the same order: starts first,
-- then slots, each in id order.
--
-- Locks: gates in id order
drop function if exists ff._admit_to_gates;
create function ff._admit_to_gates(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_picked        uuid[],
  p_locked        bigint[],
  p_now           timestamptz,
  out admitted    uuid[],
  out locked      bigint[],
  out closed      bigint[],
  out filled      bigint[]
)
returns record
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_needed   bigint[];
  v_asked    integer[];
  v_starting integer[];
  v_has_room boolean := true;
  v_gates    bigint[] := '{}';
  v_rooms    integer[];
  v_starts   integer[];
  v_is_quick boolean[];
  v_before   uuid[];
  v_reserved uuid[];
  v_starters uuid[];
  v_keeping  uuid[];
  v_void     bigint[];
  v_took     integer[];
  v_began    integer[];
  v_shut     bigint[];
  v_row      record;
  v_gate     bigint;
  v_refuser  bigint;
  v_busy     boolean;
  v_by_rate  boolean;
  v_is_slow  boolean;
  v_nth      integer;
  v_parked   uuid[] := '{}';
  v_whys     bigint[] := '{}';
begin
  admitted := '{}';
  closed := '{}';
  filled := '{}';
  select array_agg(s.id order by s.id) filter (where s.id < 4611686018427387904),
         array_agg(s.asked order by s.id) filter (where s.id < 4611686018427387904),
         array_agg(s.starting order by s.id) filter (where s.id < 4611686018427387904),
         array_agg(s.id) filter (where s.id >= 4611686018427387904)
    into v_needed, v_asked, v_starting, v_shut
  from (
    select g.id, count(*)::integer as asked,
           (count(*) filter (where x.is_start))::integer as starting
    from unnest(p_execution_ids) u(id)
    cross join lateral (
      select e.quota_ids, e.budget_ids,
             e.phase = 'active' or e.attempt_state <> 'attempt_interrupted' as is_start
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id offset 0) x
    cross join lateral unnest(x.quota_ids || x.budget_ids) g(id)
    group by g.id) s;
  if v_shut is not null then
    -- Only read the budgets, without locks: a claim never waits for a report of usage.
    v_shut := array(
      select u.id from unnest(v_shut) u(id)
      -- A missing budget admits nothing.
      left join lateral (
        select x.is_shut from ff.budget x where x.budget_id = u.id offset 0) b on true
      where b.is_shut is not false);
  end if;
  locked := p_locked;
  if v_needed is not null then
    if p_locked is null then
      locked := ff._lock_gates(p_partition_key, v_needed, true);
    elsif not v_needed <@ p_locked then
      locked := p_locked || ff._lock_gates(p_partition_key, array(
        select u.id from unnest(v_needed) u(id) where u.id <> all (p_locked)), false);
    end if;
    -- These statements run after the locks, so they see every committed release. They subtract the
    -- releases, then compute the room.
    if exists (select from ff.gate_release r where r.partition_key = p_partition_key) then
      with given_back as (
        delete from ff.gate_release r
        where r.partition_key = p_partition_key and r.gate_id = any (v_needed)
          and r.gate_id = any (locked)
        returning r.gate_id, r.slots
      )
      update ff.gate g set running = g.running - t.slots
      from (select p_partition_key as pk, b.gate_id, sum(b.slots)::integer as slots
            from given_back b group by b.gate_id offset 0) t
      where g.partition_key = t.pk and g.gate_id = t.gate_id and t.slots <> 0;
    end if;
    select array_agg(x.gate_id), array_agg(coalesce(x.max_running - x.running, 2000000000)),
           -- If the slices are malformed, the gate has no room for a start.
           array_agg(case when x.rate is null then 2000000000 else coalesce(x.rate - (
             select case when count(s.n) = 62 then sum(s.n) end from unnest(ff._roll_slices(
               x.slices, x.slice_base, ff._newest_slice(x.slice_base, x.rate_window, p_now))) s(n)),
             0) end),
           array_agg(0), array_agg(case when x.rate is not null then 0 end),
           -- v_has_room: whether there is room for all candidates
           bool_and(coalesce(x.max_running - x.running >= u.asked, true) and x.reserved_for is null
                    and (x.rate is null or u.starting = 0)),
           array_agg(u.asked), array_agg(coalesce(x.rate_window <= interval '1 minute', false)),
           array_agg(x.reserved_for), array_agg(x.start_for)
      into v_gates, v_rooms, v_starts, v_took, v_began, v_has_room, v_asked, v_is_quick, v_before,
           v_starters
    from unnest(v_needed, v_asked, v_starting) u(id, asked, starting)
    cross join lateral (
      select g.gate_id, g.max_running, g.running, g.rate, g.rate_window, g.slices, g.slice_base,
             g.reserved_for, g.start_for
      from ff.gate g
      where g.partition_key = p_partition_key and g.gate_id = u.id offset 0) x
    where u.id = any (locked);
    v_has_room := v_has_room and cardinality(v_gates) = cardinality(v_needed);
  end if;

  if v_has_room and (v_shut is null or v_shut = '{}') then
    admitted := p_execution_ids;
    update ff.gate g set running = g.running + t.asked
    from (select p_partition_key as pk, u.id, u.asked
          from unnest(v_gates, v_asked) u(id, asked) offset 0) t
    where g.partition_key = t.pk and g.gate_id = t.id;
    if exists (select from ff.line y where y.partition_key = p_partition_key) then
      perform ff._write_lines(p_partition_key, v_gates, p_picked || admitted, p_now);
    end if;
    return;
  end if;

  v_reserved := v_before;
  v_keeping := v_starters;
  if num_nonnulls(variadic v_before || v_starters) > 0 then
    v_void := ff._read_void_reservations(p_partition_key, v_gates, false, p_now);
    for v_nth in 1..cardinality(v_gates) loop
      if v_gates[v_nth] = any (v_void) then
        v_reserved[v_nth] := null;
      end if;
    end loop;
    v_void := ff._read_void_reservations(p_partition_key, v_gates, true, p_now);
    for v_nth in 1..cardinality(v_gates) loop
      if v_gates[v_nth] = any (v_void) then
        v_keeping[v_nth] := null;
      end if;
    end loop;
  end if;
  for v_row in
    select u.id, x.quota_ids, x.budget_ids, x.line_id, x.is_start, x.refusal_count
    from unnest(p_execution_ids) with ordinality u(id, n)
    cross join lateral (
      select e.quota_ids, e.budget_ids, e.line_id, coalesce(e.refusal_count, 0) as refusal_count,
             e.phase = 'active' or e.attempt_state <> 'attempt_interrupted' as is_start
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id offset 0) x
    order by u.n
  loop
    v_busy := false;
    v_refuser := null;
    foreach v_gate in array coalesce(v_row.quota_ids, '{}') loop
      v_nth := array_position(v_gates, v_gate);
      if v_nth is null then
        v_busy := true;
      elsif v_rooms[v_nth] <= (v_reserved[v_nth] <> v_row.id is true)::integer then
        v_refuser := v_gate;
        v_by_rate := false;
        v_is_slow := false;
        exit;
      elsif v_row.is_start
            and v_starts[v_nth] <= (v_keeping[v_nth] <> v_row.id is true)::integer then
        v_refuser := v_gate;
        v_by_rate := true;
        v_is_slow := not v_is_quick[v_nth];
        exit;
      end if;
    end loop;
    if v_refuser is not null
       and v_row.refusal_count + (v_row.line_id is distinct from v_refuser)::integer >= 5 then
      foreach v_gate in array v_row.quota_ids loop
        v_nth := array_position(v_gates, v_gate);
        -- Reserve nothing at a gate without a limit on slots; its room is set to two billion.
        if v_gate < v_refuser and not v_is_slow and v_reserved[v_nth] is null
           and v_rooms[v_nth] between 1 and 1000000000 then
          v_reserved[v_nth] := v_row.id;
        end if;
        if v_gate <> v_refuser and (v_gate < v_refuser or not v_by_rate) and v_row.is_start
           and v_keeping[v_nth] is null and v_began[v_nth] is not null
           and v_starts[v_nth] > 0 then
          v_keeping[v_nth] := v_row.id;
        end if;
      end loop;
    end if;
    if v_refuser is null and v_row.budget_ids is not null then
      foreach v_gate in array v_row.budget_ids loop
        if v_gate = any (v_shut) then
          v_refuser := v_gate;
          v_by_rate := false;
          exit;
        end if;
      end loop;
    end if;
    if v_refuser is not null then
      if v_row.line_id is distinct from v_refuser then
        v_parked := v_parked || v_row.id;
        v_whys := v_whys || v_refuser;
      end if;
      if v_refuser <> all (closed) then
        closed := closed || v_refuser;
      end if;
      if not v_by_rate and v_refuser <> all (filled) then
        filled := filled || v_refuser;
      end if;
    elsif not v_busy then
      admitted := admitted || v_row.id;
      foreach v_gate in array coalesce(v_row.quota_ids, '{}') loop
        v_nth := array_position(v_gates, v_gate);
        v_rooms[v_nth] := v_rooms[v_nth] - 1;
        v_took[v_nth] := v_took[v_nth] + 1;
        if v_reserved[v_nth] = v_row.id then
          v_reserved[v_nth] := null;
        end if;
        if v_keeping[v_nth] = v_row.id then
          v_keeping[v_nth] := null;
        end if;
        if v_row.is_start then
          v_starts[v_nth] := v_starts[v_nth] - 1;
          v_began[v_nth] := v_began[v_nth] + 1;
        end if;
      end loop;
    end if;
  end loop;

  update ff.gate g set running = g.running + t.took
  from (select p_partition_key as pk, u.id, u.took
        from unnest(v_gates, v_took) u(id, took) where u.took > 0 offset 0) t
  where g.partition_key = t.pk and g.gate_id = t.id;
  if (v_reserved, v_keeping) is distinct from (v_before, v_starters) then
    update ff.gate g set reserved_for = t.reserved_for, start_for = t.start_for
    from (select p_partition_key as pk, u.id, u.reserved_for, u.start_for
          from unnest(v_gates, v_reserved, v_before, v_keeping, v_starters)
            u(id, reserved_for, before, start_for, starter)
          where (u.reserved_for, u.start_for) is distinct from (u.before, u.starter) offset 0) t
    where g.partition_key = t.pk and g.gate_id = t.id;
  end if;
  for v_nth in 1..coalesce(cardinality(v_gates), 0) loop
    if v_began[v_nth] > 0
       or (v_began[v_nth] = 0 and (v_gates[v_nth] = any (closed)
                                   or v_keeping[v_nth] is distinct from v_starters[v_nth])) then
      perform ff._count_starts(p_partition_key, v_gates[v_nth], v_began[v_nth], p_now);
    end if;
  end loop;
  perform ff._park_in_lines(p_partition_key, v_parked, v_whys, p_now);
  -- This runs under the locks of the gates, so a line is closed if and only if its gate has no
  -- room.
  if exists (select from ff.line y where y.partition_key = p_partition_key) then
    perform ff._write_lines(p_partition_key, v_gates, p_picked || admitted, p_now);
  end if;
end;
$$;
