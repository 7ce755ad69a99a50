-- Explain that no live worker serves the code version of a route, and say when workers of other
-- code versions will take over its executions. Returns no row if a live worker serves the version.
drop function if exists ff._explain_version;
create function ff._explain_version(p_route ff.route, p_now timestamptz)
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
  v_seen timestamptz;
  v_due  timestamptz;
begin
  select coalesce(bool_or(w.is_live and w.serves), false) as is_served,
         max(w.heartbeat_at) filter (where w.serves) as seen_at,
         min(w.version_grace) filter (where w.is_live) as grace,
         (array_agg(distinct w.code_version) filter (where w.is_live))[1:10] as others
    into v_live
  from (
    select x.heartbeat_at, x.version_grace, x.code_version,
           x.heartbeat_at + x.liveness_ttl > p_now as is_live,
           coalesce(p_route.code_version = any (x.code_version || x.reads), false) as serves
    from ff.worker x
    where x.namespace in ('', p_route.namespace) and p_route.capabilities <@ x.capabilities
      and (x.lanes is null or p_route.lane = any (x.lanes))
      and (x.tasks is null or p_route.task = any (x.tasks))
    limit 1000
  ) w;
  if v_live.is_served then
    return;
  end if;
  select greatest(v_live.seen_at, max(g.heartbeat_at)) into v_seen
  from ff.worker_event g
  where g.code_versions is not null and p_route.code_version = any (g.code_versions)
    and g.namespace in ('', p_route.namespace);
  v_due := greatest(v_seen, p_route.registered_at) + v_live.grace;
  return query select 'worker', 'version_not_served',
    jsonb_strip_nulls(jsonb_build_object(
      'code_version', p_route.code_version, 'task', p_route.task, 'last_heard_at', v_seen,
      'others', array_remove(v_live.others, null),
      'is_due', v_due <= p_now, 'takeover_at', v_due)),
    case when v_due > p_now then v_due end;
end;
$$;
