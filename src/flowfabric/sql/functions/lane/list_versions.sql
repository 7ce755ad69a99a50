-- List the code versions of each task: how many unfinished executions they have, and how many
-- workers serve them.
--
-- A version is listed while it has unfinished executions or live workers. in_flight is exact up to
-- 10 000; 10 001 means more. `workers` counts the live workers of that version that know the task.
-- `beginners` counts the workers among them that begin new executions. `readers` names other code
-- versions whose live workers know the task and read this version.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_versions;
create function ff.list_versions(
  p_partition_key smallint,
  p_namespace     text default null,
  p_task          text default null
)
returns table (
  namespace    text,
  task         text,
  code_version text,
  in_flight    integer,
  workers      integer,
  beginners    integer,
  readers      text[]
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now    constant timestamptz := ff.now();
  v_routes bigint[];
begin
  perform ff._check_namespace(p_namespace);
  v_routes := ff._read_versioned_routes(p_partition_key, p_namespace);
  return query
  with live as materialized (
    select w.namespace, w.tasks, w.code_version, w.reads, w.finish_only
    from ff.worker w
    where w.code_version is not null and w.heartbeat_at + w.liveness_ttl > v_now
      and (p_namespace is null or w.namespace in ('', p_namespace))
  ),
  version as materialized (
    select f.namespace, f.task, f.code_version, sum(f.number) as number
    from (
      select r.namespace, r.task, r.code_version, c.number
      from unnest(v_routes) u(id)
      cross join lateral (select x.* from ff.route x where x.route_id = u.id offset 0) r
      cross join lateral (
        select count(*) as number
        from (
          select from ff.execution e
          where e.partition_key = p_partition_key and e.namespace = r.namespace
            and e.route_id = r.route_id and e.route_id >= 4611686018427387904
            and e.phase <> 'terminal'
          limit 10001) n) c
      where p_task is null or r.task = p_task
      union all
      select w.namespace, t.name, w.code_version, 0
      from live w cross join lateral unnest(w.tasks) t(name)
      where w.namespace <> '' and (p_task is null or t.name = p_task)) f
    group by f.namespace, f.task, f.code_version
  )
  select v.namespace, v.task, v.code_version, least(v.number, 10001)::integer, n.workers,
         n.beginners,
         array(select distinct w.code_version collate "C" from live w
               where v.code_version = any (w.reads) and w.code_version <> v.code_version
                 and w.namespace in ('', v.namespace)
                 and (w.tasks is null or v.task = any (w.tasks))
               order by 1)
  from version v
  cross join lateral (
    select count(*)::integer as workers,
           (count(*) filter (where not w.finish_only))::integer as beginners
    from live w
    where w.code_version = v.code_version and w.namespace in ('', v.namespace)
      and (w.tasks is null or v.task = any (w.tasks))) n
  order by v.task collate "C", v.namespace collate "C", v.code_version collate "C";
end;
$$;
