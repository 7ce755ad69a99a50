-- Return since when workers have only passed an execution on, as an object {since}. A worker whose
-- code is older than the journal passes the execution on: it delays the execution, so that a worker
-- with newer code can claim it (p_newer_step of ff.delay_execution). If the lease before the
-- present one ended in any other way, `since` is now.
--
-- Returns null if `since` is at least 10 minutes ago, and every live worker that could take the
-- execution, other than its holder, has passed it on since then. In that case no worker with newer
-- code can be expected. The caller has locked the execution.
drop function if exists ff._read_passed_on;
create function ff._read_passed_on(p_partition_key smallint, p_execution_id uuid, p_now timestamptz)
returns jsonb
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_row   ff.execution;
  v_route ff.route;
  v_since timestamptz;
  v_tried text[];
begin
  select e.* into v_row
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
  -- Look only at the lease before this one. If its worker did not pass the execution on, the code
  -- of that worker was new enough, and the time starts again.
  select (x.detail ->> 'since')::timestamptz into v_since
  from (
    select v.epoch, v.detail from ff.event v
    where v.partition_key = p_partition_key and v.execution_id = p_execution_id
    order by v.generation desc, v.event_id desc
    limit 10) x
  where x.epoch = v_row.epoch - 1 and x.detail ? 'newer_step';
  v_since := coalesce(v_since, p_now);
  if v_since + interval '10 minutes' <= p_now then
    v_tried := v_row.worker_instance_id || array(
      select v.worker_instance_id from ff.event v
      where v.partition_key = p_partition_key and v.execution_id = p_execution_id
        and case when v.occurred_at >= v_since then v.detail ? 'newer_step' else false end);
    select r.* into v_route from ff.route r where r.route_id = v_row.route_id;
    perform from ff.worker x
    where x.heartbeat_at + x.liveness_ttl > p_now and x.namespace in ('', v_row.namespace)
      and x.worker_instance_id <> all (v_tried)
      and v_route.capabilities <@ x.capabilities
      and (x.lanes is null or v_route.lane = any (x.lanes))
      and (x.tasks is null or v_route.task = any (x.tasks))
      and not (x.finish_only and v_route.code_version is null);
    if not found then
      return null;
    end if;
  end if;
  return jsonb_build_object('since', v_since);
end;
$$;
