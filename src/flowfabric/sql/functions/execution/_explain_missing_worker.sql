-- Explain why no live worker covers a route. The call checks in this order whether a worker is
-- alive, serves the namespace, knows the task, serves the lane, and has the capabilities. The
-- answer names the first check that excludes all remaining workers. At most 1 000 workers are read.
drop function if exists ff._explain_missing_worker;
create function ff._explain_missing_worker(
  p_namespace text,
  p_row       ff.execution,
  p_route     ff.route,
  p_now       timestamptz
)
returns table (dimension text, code text, evidence jsonb, changes_at timestamptz)
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_live record;
begin
  select count(*) as alive,
         count(*) filter (where w.is_ours) as ours,
         count(*) filter (where w.is_ours and w.knows) as knowing,
         count(*) filter (where w.is_ours and w.knows and w.serves) as serving,
         (array_agg(w.worker_instance_id order by cardinality(w.missing), w.worker_instance_id)
           filter (where w.missing is not null))[1] as nearest,
         (array_agg(array_to_json(w.missing)
                    order by cardinality(w.missing), w.worker_instance_id)
           filter (where w.missing is not null))[1] as missing,
         (array_agg(distinct w.namespace) filter (where not w.is_ours))[1:10] as elsewhere,
         (array_agg(distinct w.served) filter (where w.is_ours and w.knows))[1:10] as lanes
    into v_live
  from (
    select k.worker_instance_id, k.namespace, k.is_ours, k.knows, k.serves,
           case when k.is_ours and k.knows then array_to_string(k.lanes, ', ') end as served,
           case when k.is_ours and k.knows and k.serves then array(
             select c.name from unnest(p_route.capabilities) c(name)
             where c.name <> all (k.capabilities)) end as missing
    from (
      select x.worker_instance_id, x.namespace, x.lanes, x.capabilities,
             x.namespace in ('', p_row.namespace) as is_ours,
             x.tasks is null or p_route.task = any (x.tasks) as knows,
             x.lanes is null or p_route.lane = any (x.lanes) as serves
      from ff.worker x
      where x.heartbeat_at + x.liveness_ttl > p_now
      order by x.namespace not in ('', p_row.namespace)
      limit 1000
    ) k
  ) w;
  return query select 'worker',
    case when v_live.alive = 0 then 'no_worker_alive'
         when v_live.ours = 0 then 'other_namespaces_only'
         when v_live.knowing = 0 then 'task_unknown'
         when v_live.serving = 0 then 'lane_not_served'
         else 'capabilities_missing' end,
    jsonb_strip_nulls(jsonb_build_object(
      'task', p_route.task, 'lane', p_route.lane, 'namespace', p_row.namespace,
      'live_workers', case when p_namespace is null then v_live.alive else v_live.ours end,
      'needs', case when v_live.serving > 0 then p_route.capabilities end,
      'nearest', v_live.nearest, 'missing', v_live.missing,
      'namespaces', case when p_namespace is null and v_live.alive > 0 and v_live.ours = 0
                         then v_live.elsewhere end,
      'lanes', case when v_live.knowing > 0 and v_live.serving = 0 then v_live.lanes end,
      'last_heard_at', case when v_live.alive = 0 then (
        select max(x.heartbeat_at) from ff.worker x
        where p_namespace is null or x.namespace in ('', p_namespace)) end)),
    null::timestamptz;
end;
$$;
