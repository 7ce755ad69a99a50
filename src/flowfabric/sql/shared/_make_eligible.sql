-- Make a waiting execution eligible: its dependencies are satisfied (T4), it is unblocked (T7), or
-- its delay ends (T8). If p_kind is null, the move is quiet: it writes no event and keeps the
-- version. The caller has locked the execution.
drop function if exists ff._make_eligible;
create function ff._make_eligible(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_cause         ff.cause,
  p_kind          ff.event_kind,
  p_now           timestamptz,
  p_actor         text,
  p_detail        jsonb
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
  v_route      bigint;
begin
  v_route := (
    select e.route_id from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id);
  with eligible as (
    update ff.execution e set
      eligibility = 'eligible_now',
      line_id = null,
      blocking_reason = 'waiting_for_worker',
      blocking_detail = null,
      blocked_at = null,
      cause = p_cause,
      version = e.version + (p_kind is not null)::integer,
      delayed_until = null,
      due_at = e.deadline_at,
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at)
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    returning e.version, e.flow_id, e.namespace, e.instance_tag, e.transitioned_at
  )
  insert into ff.event (
    partition_key, generation, xid, execution_id, version, kind, route_id, flow_id, namespace,
    instance_tag, occurred_at, actor, detail)
  select p_partition_key, v_generation, v_xid, p_execution_id, e.version, p_kind, v_route,
         e.flow_id, e.namespace, e.instance_tag, e.transitioned_at, p_actor, p_detail
  from eligible e
  where p_kind is not null;
  perform ff._hint_ready(p_partition_key, array[v_route]);
end;
$$;
