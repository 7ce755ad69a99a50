-- Write the event `budget_exceeded` for a running execution that has exceeded a budget whose
-- on_exceed is `warn` (T32). The caller has locked the execution.
drop function if exists ff._warn_of_budget;
create function ff._warn_of_budget(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_detail        jsonb,
  p_now           timestamptz
)
returns void
language plpgsql
as $$
declare
  v_xid        constant xid8 := pg_current_xact_id();
  v_generation constant integer := ff._enter_generation(p_partition_key);
begin
  with warned as (
    update ff.execution e set
      cause = 'report_usage',
      version = e.version + 1,
      transitioned_at = greatest(p_now, e.transitioned_at),
      mutated_at = greatest(p_now, e.transitioned_at)
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    returning e.execution_id, e.version, e.attempt_index, e.epoch, e.route_id, e.flow_id,
               e.namespace, e.instance_tag, e.transitioned_at
  )
  insert into ff.event (
    partition_key, generation, xid, execution_id, version, kind, attempt_index, epoch, route_id, flow_id, namespace, instance_tag, occurred_at, detail)
  select p_partition_key, v_generation, v_xid, w.execution_id, w.version, 'budget_exceeded',
         w.attempt_index, w.epoch, w.route_id, w.flow_id, w.namespace, w.instance_tag, w.transitioned_at, p_detail
  from warned w;
end;
$$;
