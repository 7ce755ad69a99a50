-- Register a worker instance: its lanes, tasks and capabilities, and how long it counts as alive
-- without a heartbeat (p_liveness_ttl). The instance should send six heartbeats within that time.
--
-- While an instance is alive, its p_worker_instance_id belongs to its p_worker_id. A call with
-- the same p_worker_instance_id and another p_worker_id is refused as invalid_input. The row of a
-- dead instance is replaced.
--
-- An empty namespace means all namespaces. Null lanes mean all lanes, and null tasks mean all
-- tasks. If p_finish_only is true, the worker only finishes executions that its version has begun.
-- p_host and p_slots (how many handlers run at the same time) are for display only.
--
-- p_code_version is the version of the worker's code, and p_reads are other versions whose journals
-- the worker can read. If another version has had no worker for p_version_grace, this worker takes
-- over the executions of that version (ff.list_unserved_routes).
--
-- Some executions are blocked because no capable worker was alive. If this worker covers their
-- routes, they become eligible, at most 500 in each partition. ff.unblock_executions finds the
-- rest.
--
-- Moves:    runnable blocked by route -> runnable eligible (T7), without an event
-- Refuses:  WF001 invalid_input
-- Locks:    the worker's own row, waiting up to 2 s; then executions, skipping locked ones
-- Repeat:   `refreshed`; the row is written again, but no event is
-- Rights:   app
drop function if exists ff.register_worker;
create function ff.register_worker(
  p_namespace          text,
  p_worker_id          text,
  p_worker_instance_id text,
  p_lanes              text[],
  p_tasks              text[],
  p_capabilities       text[],
  p_liveness_ttl       interval,
  p_code_version       text default null,
  p_reads              text[] default '{}',
  p_version_grace      interval default '60 seconds',
  p_finish_only        boolean default false,
  p_host               text default null,
  p_slots              integer default null
)
returns table (outcome text, expires_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now          timestamptz;
  v_lanes        text[];
  v_tasks        text[];
  v_capabilities text[];
  v_reads        text[];
  v_owner        text;
  v_is_new       boolean;
  v_heartbeat_at timestamptz;
begin
  perform ff._check_namespace(nullif(p_namespace, ''));
  perform ff._check_worker(p_namespace, p_worker_id, p_worker_instance_id, p_lanes, p_tasks,
                           p_capabilities, p_liveness_ttl, p_code_version, p_reads,
                           p_version_grace, p_host, p_slots);
  v_now := ff.now();
  with swept as (
    delete from ff.worker w
    where w.namespace = p_namespace and w.worker_instance_id = p_worker_instance_id
      and (w.heartbeat_at at time zone 'UTC' + w.liveness_ttl) at time zone 'UTC' <= v_now
    returning w.worker_id, w.heartbeat_at, w.code_version, w.reads
  )
  insert into ff.worker_event (
    namespace, worker_instance_id, worker_id, kind, occurred_at, heartbeat_at, code_versions)
  select p_namespace, p_worker_instance_id, s.worker_id, 'ttl_swept', v_now, s.heartbeat_at,
         case when s.code_version is not null then s.code_version || s.reads end
  from swept s;

  if p_lanes is not null then
    v_lanes := array(select distinct u.x collate "C" from unnest(p_lanes) u(x) order by 1);
  end if;
  if p_tasks is not null then
    v_tasks := array(select distinct u.x collate "C" from unnest(p_tasks) u(x) order by 1);
  end if;
  v_capabilities := array(
    select distinct u.x collate "C" from unnest(p_capabilities) u(x) order by 1);
  v_reads := array(select distinct u.x collate "C" from unnest(p_reads) u(x) order by 1);
  -- A concurrent registration of the same instance waits here, and then sees who owns the row.
  insert into ff.worker as w (
    namespace, worker_instance_id, worker_id, lanes, tasks, capabilities, liveness_ttl,
    code_version, reads, version_grace, finish_only, host, slots, registered_at, heartbeat_at)
  values (
    p_namespace, p_worker_instance_id, p_worker_id,
    v_lanes, v_tasks, v_capabilities, p_liveness_ttl, p_code_version, v_reads, p_version_grace,
    coalesce(p_finish_only, false), p_host, p_slots, v_now, v_now)
  on conflict (namespace, worker_instance_id) do update
    set lanes = excluded.lanes,
        tasks = excluded.tasks,
        capabilities = excluded.capabilities,
        liveness_ttl = excluded.liveness_ttl,
        code_version = excluded.code_version,
        reads = excluded.reads,
        version_grace = excluded.version_grace,
        finish_only = excluded.finish_only,
        host = excluded.host,
        slots = excluded.slots,
        heartbeat_at = greatest(w.heartbeat_at, excluded.heartbeat_at)
    where w.worker_id = excluded.worker_id
  -- xmax is 0 only for a new row.
  returning w.xmax = 0, w.heartbeat_at into v_is_new, v_heartbeat_at;
  if not found then
    select w.worker_id into v_owner
    from ff.worker w
    where w.namespace = p_namespace and w.worker_instance_id = p_worker_instance_id;
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'worker_instance_id',
      'problem', 'instance_id reassigned: the live worker ' || coalesce(v_owner, '?') || ' has it'));
  end if;
  if v_is_new then
    insert into ff.worker_event (namespace, worker_instance_id, worker_id, kind, occurred_at)
    values (p_namespace, p_worker_instance_id, p_worker_id, 'registered', v_now);
  end if;
  perform ff._unblock_covered_routes(
    p.partition_key::smallint, 500, v_now, p_namespace, p_worker_instance_id)
  from ff.meta m
  cross join lateral generate_series(0, m.value::integer - 1) p(partition_key)
  where m.name = 'partitions';
  expires_at := v_heartbeat_at + p_liveness_ttl;
  outcome := case when v_is_new then 'registered' else 'refreshed' end;
  return next;
end;
$$;
