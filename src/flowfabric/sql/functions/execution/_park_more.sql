-- Put waiting executions into the lines of gates and budgets without room, after a gate or a budget
-- has refused a candidate of the claim. Neither the later rounds of this claim nor later claims
-- then read these executions. Budgets are not locked.
--
-- p_picked are the executions that the claim has admitted and will lease. p_closed are the gates
-- and budgets that refused a candidate. p_filled are the entries of p_closed that also refuse
-- executions that resume their attempt (ff._admit_to_gates). p_locked are the gates that this
-- transaction has locked, or null.
--
-- The call reads at most 1 000 executions of each route, in claim order, and puts at most 1 000
-- executions into lines. It skips executions that are locked, that are past their deadline, or that
-- were refused four times or more. The claim itself judges an execution after four refusals,
-- because the next refusal can make a reservation.
--
-- An execution that resumes its attempt needs no start, so a gate without room for a start can
-- still admit it. Such an execution is put only into the lines of the gates in `filled`.
--
-- The executions that the call reads may have other full gates. The call locks these gates, closes
-- their lines, and adds them to `closed`, `filled` and `locked`. It skips gates that another
-- transaction has locked. A gate to which slots were given back can have room, so its line stays
-- open, and the gate is only added to `locked`.
--
-- Locks: gates in id order, skipping locked ones; executions, skipping locked ones
drop function if exists ff._park_more;
create function ff._park_more(
  p_partition_key smallint,
  p_routes        bigint[],
  p_picked        uuid[],
  p_closed        bigint[],
  p_filled        bigint[],
  p_locked        bigint[],
  p_now           timestamptz,
  out closed      bigint[],
  out filled      bigint[],
  out locked      bigint[]
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
  v_full    bigint[];
  v_waiting uuid[];
  v_ids     uuid[];
  v_whys    bigint[];
begin
  closed := p_closed;
  filled := p_filled;
  locked := p_locked;
  with waiting as materialized (
    select c.execution_id, c.quota_ids, c.budget_ids
    from unnest(p_routes) r(id)
    cross join lateral (
      select e.execution_id, e.quota_ids, e.budget_ids from ff.execution e
      where e.partition_key = p_partition_key and e.route_id = r.id
        and e.phase = 'runnable' and e.eligibility = 'eligible_now'
      order by e.rank, e.order_at, e.execution_id
      limit 1000) c
  ),
  full_gate as materialized (
    select distinct g.id
    from waiting w
    cross join lateral unnest(w.quota_ids) g(id)
    cross join lateral (
      select from ff.gate x
      where x.partition_key = p_partition_key and x.gate_id = g.id
        and case when x.running >= x.max_running then true else false end offset 0) x
    where g.id <> all (p_closed)
  ),
  shut as materialized (
    select p_closed || array(select f.id from full_gate f) as ids
  )
  select array(select f.id from full_gate f),
         array(
           select w.execution_id from waiting w
           cross join shut s
           where coalesce(w.quota_ids || w.budget_ids, w.quota_ids, w.budget_ids) && s.ids
             and w.execution_id <> all (p_picked))
    into v_full, v_waiting;
  if v_full <> '{}' then
    locked := nullif(p_locked || ff._lock_gates(p_partition_key, array(
      select u.id from unnest(v_full) u(id)
      where u.id <> all (coalesce(p_locked, '{}'))), false), '{}');
    -- This is a new statement, so it sees what was committed before the locks. A gate with a
    -- release may have room, so it is left out. A release of 0 slots means only that the limit was
    -- written again; the limit is read here anyway.
    v_full := array(
      select u.id from unnest(v_full) u(id)
      cross join lateral (
        select from ff.gate x
        where x.partition_key = p_partition_key and x.gate_id = u.id
          and case when x.running >= x.max_running then true else false end offset 0) x
      where u.id = any (locked) and not exists (
        select from ff.gate_release y
        where y.partition_key = p_partition_key and y.gate_id = u.id
          and case when y.slots > 0 then true else false end offset 0));
    update ff.line y set is_open = false, served_at = p_now
    from (select p_partition_key as pk, u.id from unnest(v_full) u(id) offset 0) t
    where y.partition_key = t.pk and y.gate_id = t.id and y.is_open;
    closed := closed || v_full;
    filled := filled || v_full;
  end if;
  select array_agg(l.execution_id), array_agg(l.why) into v_ids, v_whys
  from (
    select k.execution_id, k.why
    from unnest(v_waiting) u(id)
    cross join lateral (
      select e.execution_id,
             (select min(g.id) from unnest(e.quota_ids || e.budget_ids) g(id)
              where g.id = any (case when e.attempt_state = 'attempt_interrupted' then filled
                                     else closed end)) as why
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
        and case when e.phase = 'runnable' and e.eligibility = 'eligible_now'
                  and coalesce(e.refusal_count, 0) < 4
                  and coalesce(e.deadline_at > p_now, true)
                  and coalesce(e.quota_ids || e.budget_ids, e.quota_ids, e.budget_ids)
                      && case when e.attempt_state = 'attempt_interrupted' then filled
                              else closed end
              then true else false end
      for no key update skip locked) k
    limit 1000) l;
  perform ff._park_in_lines(p_partition_key, coalesce(v_ids, '{}'), v_whys, p_now);
end;
$$;
