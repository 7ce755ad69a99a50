-- Wake suspended executions and close their suspensions. T26 is a wake by the timeout of the
-- suspension. T18 is every other wake: by a signal, by the end of runs or by an operator. The
-- executions become eligible. If p_delay is more than 0, they are delayed by p_delay instead.
-- p_detail says what woke them. The caller has locked the executions.
drop function if exists ff._wake_suspended;
create function ff._wake_suspended(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_cause         ff.cause,
  p_close_reason  text,
  p_now           timestamptz,
  p_detail        jsonb,
  p_delay         interval default null,
  p_actor         text default null
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_xid        constant xid8 := pg_current_xact_id();
  v_generation constant integer := ff._enter_generation(p_partition_key);
  v_until      constant timestamptz := case when p_delay > interval '0' then p_now + p_delay end;
  v_routes     bigint[];
begin
  update ff.suspension s set
    closed_at = greatest(p_now, s.suspended_at),
    close_reason = p_close_reason,
    woken_by = p_detail
  from (select p_partition_key as pk, u.id from unnest(p_execution_ids) u(id) offset 0) i
  where s.partition_key = i.pk and s.execution_id = i.id and s.closed_at is null;
  delete from ff.run_wait w
  using (select p_partition_key as pk, u.id from unnest(p_execution_ids) u(id) offset 0) i
  where w.partition_key = i.pk and w.waiter_id = i.id;
  with woken as (
    update ff.execution e set
      phase = 'runnable',
      eligibility = case when v_until is null then 'eligible_now'::ff.eligibility
                         else 'not_eligible_until_time' end,
      blocking_reason = case when v_until is null then 'waiting_for_worker'::ff.blocking_reason
                             else 'waiting_for_resume_delay' end,
      blocking_detail = null,
      cause = p_cause,
      version = e.version + 1,
      delayed_until = v_until,
      due_at = least(v_until, e.deadline_at),
      wait_left = null,
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at)
    from (select p_partition_key as pk, u.id from unnest(p_execution_ids) u(id) offset 0) i
    where e.partition_key = i.pk and e.execution_id = i.id
      and case when e.phase = 'suspended' then true else false end
    returning e.execution_id, e.version, e.attempt_index, e.epoch, e.route_id, e.flow_id,
              e.namespace, e.instance_tag, e.transitioned_at
  )
  insert into ff.event (
    partition_key, generation, xid, execution_id, version, kind, attempt_index, epoch, route_id,
    flow_id, namespace, instance_tag, occurred_at, actor, detail)
  select p_partition_key, v_generation, v_xid, w.execution_id, w.version, 'woken',
         w.attempt_index, w.epoch, w.route_id, w.flow_id, w.namespace, w.instance_tag,
         w.transitioned_at, p_actor, p_detail
  from woken w;
  if v_until is null then
    v_routes := array(
      select distinct e.route_id
      from unnest(p_execution_ids) u(id)
      cross join lateral (
        select x.route_id from ff.execution x
        where x.partition_key = p_partition_key and x.execution_id = u.id
        offset 0) e);
    perform ff._hint_ready(p_partition_key, v_routes);
  end if;
end;
$$;
