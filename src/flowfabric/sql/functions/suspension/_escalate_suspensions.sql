-- Leave suspended executions to an operator (T27). The waits stay open. The timeouts of the
-- suspensions and of their waits are removed. The caller has locked the executions.
drop function if exists ff._escalate_suspensions;
create function ff._escalate_suspensions(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_now           timestamptz
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
begin
  -- Remove the timeouts of the waits as well. Otherwise the next ff.ask_waits would find the waits
  -- timed out.
  update ff.step s set until_at = null
  from ff.suspension p
  where p.partition_key = p_partition_key and p.execution_id = any (p_execution_ids)
    and p.closed_at is null
    and s.partition_key = p_partition_key and s.execution_id = p.execution_id
    and s.kind = 'wait' and s.taken_as is null and exists (
      select from unnest(p.wait_names, p.wait_occurrences) u(name, occurrence)
      where u.name = s.name and u.occurrence = s.occurrence);
  update ff.suspension p set
    timeout_at = null,
    reason_code = 'waiting_for_operator_review'
  where p.partition_key = p_partition_key and p.execution_id = any (p_execution_ids)
    and p.closed_at is null;
  with escalated as (
    update ff.execution e set
      blocking_reason = 'paused_by_operator',
      cause = 'escalate',
      version = e.version + 1,
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at)
    from (select p_partition_key as pk, u.id from unnest(p_execution_ids) u(id) offset 0) i
    where e.partition_key = i.pk and e.execution_id = i.id
    returning e.execution_id, e.version, e.attempt_index, e.epoch, e.route_id, e.flow_id,
              e.namespace, e.instance_tag, e.transitioned_at
  )
  insert into ff.event (
    partition_key, generation, xid, execution_id, version, kind, attempt_index, epoch, route_id,
    flow_id, namespace, instance_tag, occurred_at, detail)
  select p_partition_key, v_generation, v_xid, x.execution_id, x.version, 'escalated',
         x.attempt_index, x.epoch, x.route_id, x.flow_id, x.namespace, x.instance_tag,
         x.transitioned_at, '{"category": "suspension_timeout"}'
  from escalated x;
end;
$$;
