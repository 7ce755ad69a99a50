-- Lease the next executions of the routes that a worker covers.
--
-- A worker covers a route if all of this is true: the route is of the worker's namespace, the
-- worker serves the lane of the route and knows its task (null lanes or tasks mean any), the worker
-- offers all capabilities that the route needs, and the lane is open to claims. A route with a code
-- version is covered only if the version is in p_code_versions, or if the route is in p_unserved
-- (from ff.list_unserved_routes) and its version still has no live worker. If p_finish_only is
-- true, the worker begins nothing new: it covers only routes with a code version.
--
-- The claim order is priority, order_at, id. Among equal priorities, the executions of p_first_lane
-- go first, so that a worker of several lanes can take turns. If the last claim of the worker
-- leased p_limit executions, the worker can give the position where that claim ended (the floor:
-- p_floor_rank, p_floor_at, p_floor_id). The new claim then starts there, and does not scan dead
-- index entries again.
--
-- Executions that are granted to another worker are skipped. A claimed execution loses its grant.
-- An execution past its deadline is not leased, but ended as by ff.expire_executions.
--
-- crash_count is the number of workers in a row that vanished while they had a lease on the
-- execution. If it is 2 or more, the worker must run the execution alone. If p_reports_starts is
-- true, the worker must call ff.start_executions before it runs an execution whose crash_count is
-- not 0. A further crash then counts only against executions whose start the worker has reported.
--
-- Claims of the same routes at the same time hinder each other. If p_gives_way is true and another
-- claim of these routes is under way, this claim can end without leasing anything. In that case it
-- returns one row with an empty array of ids; call again after a few milliseconds.
--
-- In all other cases, a claim that leases nothing returns no row. A claim that leases executions
-- returns one row of arrays, in claim order. An array has one value for each execution, but
-- lease_expires_ats can have a single value for all executions. namespaces, lanes and tasks have
-- one value for each route. route_nos says which route each execution has, counted from 1. If
-- route_nos is null, all executions have the first route.
--
-- Some arrays can be null. Null means that all executions have the usual value: claim_kinds
-- (fresh), epochs (1), attempt_indexes (0), attempt_ids (the claim id), attempt_types (initial),
-- retry_counts, replay_counts, crash_counts and generations (0), attempt_deadline_ats,
-- deadline_ats, payload_encodings and trace_contexts (null).
--
-- Moves:    runnable -> active (T9 new attempt, T10 resumed), active -> active (T21 reclaimed),
--           runnable eligible -> runnable blocked by quota or budget (T6, quiet),
--           active -> terminal failed (T22 over the limit of reclaims, or three crashes while it
--           ran alone), unfinished -> terminal expired (T24 past its deadline); propagation:
--           runnable blocked or suspended -> eligible (T4, T18), unfinished -> terminal cancelled
--           (T23) or skipped (T5)
-- Refuses:  WF001 invalid_input
-- Locks:    gates that could have room again, skipping locked ones; then executions in claim order,
--           skipping locked ones; then gates in id order, waiting up to 2 s; then the executions
--           that ends affect, skipping locked ones; then the grants of the claimed executions; then
--           the claim slot, waiting up to 2 s
-- Repeat:   if p_claim_id is still the last claim of the worker instance, returns the executions
--           that the first call leased and that still have that lease
-- Rights:   app
drop function if exists ff.claim_executions;
create function ff.claim_executions(
  p_partition_key      smallint,
  p_namespace          text,
  p_worker_id          text,
  p_worker_instance_id text,
  p_claim_id           uuid,
  p_lanes              text[],
  p_tasks              text[],
  p_capabilities       text[],
  p_limit              integer,
  p_lease_ttl          interval,
  p_first_lane         text default null,
  p_floor_rank         smallint default null,
  p_floor_at           timestamptz default null,
  p_floor_id           uuid default null,
  p_reports_starts     boolean default false,
  p_code_versions      text[] default null,
  p_unserved           bigint[] default null,
  p_finish_only        boolean default false,
  p_gives_way          boolean default false
)
returns table (
  execution_ids        uuid[],
  route_nos            integer[],
  namespaces           text[],
  lanes                text[],
  tasks                text[],
  claim_kinds          text[],
  ranks                smallint[],
  order_ats            timestamptz[],
  epochs               bigint[],
  attempt_indexes      integer[],
  attempt_ids          uuid[],
  attempt_types        text[],
  lease_expires_ats    timestamptz[],
  attempt_deadline_ats timestamptz[],
  deadline_ats         timestamptz[],
  retry_counts         integer[],
  payload_encodings    text[],
  payloads             bytea[],
  replay_counts        integer[],
  trace_contexts       text[],
  crash_counts         integer[],
  generations          integer[]
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_namespace     constant text := coalesce(p_namespace, '');
  v_now           timestamptz;
  v_slot_claim    uuid;
  v_slot_ids      uuid[];
  v_is_reclaiming boolean;
  v_is_raised     boolean;
  v_has_lines     boolean;
  v_is_due        boolean;
  v_locked_gates  bigint[];
  v_is_fair       boolean;
  v_covered       record;
  v_fresh         record;
  v_routes        bigint[];
  v_turns         smallint[];
  v_limited       bigint[];
  v_lane_gates    bigint[];
  v_locked        uuid[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_claim(p_worker_id, p_worker_instance_id, p_claim_id, p_capabilities, p_limit,
                          p_lease_ttl, p_floor_rank);
  perform ff._check_coverage(p_lanes, p_tasks, p_code_versions, p_unserved);
  select s.claim_id, s.execution_ids,
         exists (
           select from ff.execution e
           where e.partition_key = p_partition_key
             and e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
             and e.reclaim_at is null and e.line_id is null),
         exists (select from ff.event_generation g where g.partition_key = p_partition_key),
         exists (select from ff.line y where y.partition_key = p_partition_key),
         exists (select from ff.fair_lane l where l.partition_key = p_partition_key)
    into v_slot_claim, v_slot_ids, v_is_reclaiming, v_is_raised, v_has_lines, v_is_fair
  from (select) o
  left join ff.claim_slot s
    on s.partition_key = p_partition_key and s.namespace = v_namespace
    and s.worker_instance_id = p_worker_instance_id;

  if v_slot_claim is distinct from p_claim_id then
    v_now := ff.now();
    v_covered := ff._read_covered_routes(
      p_namespace, p_lanes, p_tasks, p_capabilities, p_first_lane, p_code_versions, p_unserved,
      p_finish_only, v_now);
    v_routes := v_covered.route_ids;
    v_turns := v_covered.turns;
    v_limited := v_covered.limited;
    v_lane_gates := v_covered.gates;
    if v_routes is null then
      return;
    end if;
    if v_is_reclaiming then
      v_is_reclaiming := exists (
        select from unnest(v_routes) r(id)
        where exists (
          select from ff.execution e
          where e.partition_key = p_partition_key and e.route_id = r.id
            and e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
            and e.reclaim_at is null and e.line_id is null
          offset 0));
    end if;
    if v_has_lines then
      -- Only open lines matter to this claim. A closed line can open only if a slot was given back
      -- or a rate has room again.
      select exists (
               select from unnest(v_routes) r(id)
               where exists (
                 select from ff.line y
                 where y.partition_key = p_partition_key and y.route_id = r.id and y.is_open
                 offset 0)),
             (exists (select from ff.gate_release g where g.partition_key = p_partition_key)
              or exists (
                select from ff.gate g
                where g.partition_key = p_partition_key and g.opens_at <= v_now))
             and exists (
               select from unnest(v_routes) r(id)
               where exists (
                 select from ff.line y
                 where y.partition_key = p_partition_key and y.route_id = r.id offset 0))
        into v_has_lines, v_is_due;
    end if;
    if v_is_due then
      v_locked_gates := nullif(ff._fold_releases(p_partition_key, v_routes, v_now), '{}');
      v_has_lines := exists (
        select from unnest(v_routes) r(id)
        where exists (
          select from ff.line y
          where y.partition_key = p_partition_key and y.route_id = r.id and y.is_open offset 0));
    end if;
    if not v_is_reclaiming and not v_has_lines and v_locked_gates is null
       and (v_limited is null or cardinality(v_routes) = 1) then
      v_fresh := ff._claim_fresh(
        p_partition_key, p_worker_id, p_worker_instance_id, p_claim_id, p_limit, p_lease_ttl,
        v_routes, v_turns, p_floor_rank, p_floor_at, p_floor_id, coalesce(p_reports_starts, false),
        case when v_is_raised then ff._enter_generation(p_partition_key) else 0 end,
        v_lane_gates[1]);
      if v_fresh.execution_ids is not null then
        perform ff._write_claim_slot(
          p_partition_key, v_namespace, p_worker_instance_id, p_claim_id, v_now,
          v_fresh.execution_ids, v_slot_claim);
        if v_is_fair then
          perform ff._note_served(p_partition_key, v_fresh.execution_ids);
        end if;
        execution_ids := v_fresh.execution_ids;
        route_nos := v_fresh.route_nos;
        namespaces := v_covered.namespaces;
        lanes := v_covered.lanes;
        tasks := v_covered.tasks;
        ranks := v_fresh.ranks;
        order_ats := v_fresh.order_ats;
        epochs := v_fresh.epochs;
        lease_expires_ats := v_fresh.lease_expires_ats;
        attempt_deadline_ats := v_fresh.attempt_deadline_ats;
        deadline_ats := v_fresh.deadline_ats;
        payload_encodings := v_fresh.payload_encodings;
        payloads := v_fresh.payloads;
        trace_contexts := v_fresh.trace_contexts;
        return next;
        return;
      end if;
      if p_gives_way and not v_fresh.has_turn then
        execution_ids := '{}';
        return next;
        return;
      end if;
      v_locked := v_fresh.locked;
      v_locked_gates := nullif(v_fresh.locked_gates, '{}');
      -- There is nothing to claim. But if this call repeats an earlier call, that call may have
      -- claimed after this one read the slot.
      if v_fresh.is_empty and not exists (
           select from ff.claim_slot s
           where s.partition_key = p_partition_key and s.namespace = v_namespace
             and s.worker_instance_id = p_worker_instance_id and s.claim_id = p_claim_id) then
        return;
      end if;
    end if;
  end if;

  return query
  select array_agg(c.execution_id), array_agg(c.ordinality::integer), array_agg(c.namespace),
         array_agg(c.lane), array_agg(c.task), array_agg(c.claim_kind), array_agg(c.rank),
         array_agg(c.order_at), array_agg(c.epoch), array_agg(c.attempt_index),
         array_agg(c.attempt_id), array_agg(c.attempt_type), array_agg(c.lease_expires_at),
         array_agg(c.attempt_deadline_at), array_agg(c.deadline_at), array_agg(c.retry_count),
         array_agg(c.payload_encoding), array_agg(c.payload), array_agg(c.replay_count),
         array_agg(c.trace_context), array_agg(c.crash_count), array_agg(c.generation)
  from ff._claim_in_rounds(
    p_partition_key, p_namespace, p_worker_id, p_worker_instance_id, p_claim_id, p_limit,
    p_lease_ttl, v_routes, v_turns, p_floor_rank, p_floor_at, p_floor_id,
    coalesce(p_reports_starts, false), v_slot_claim, v_slot_ids, v_locked,
    v_has_lines, v_locked_gates, v_is_fair, v_limited, v_lane_gates) with ordinality c
  having count(*) > 0;
end;
$$;
