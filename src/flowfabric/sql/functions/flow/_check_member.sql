-- Refuse an execution that is not a member of the flow.
drop function if exists ff._check_member;
create function ff._check_member(p_partition_key smallint, p_flow_id uuid, p_execution_id uuid)
returns void
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  if not exists (select from ff.execution e
                 where e.partition_key = p_partition_key and e.execution_id = p_execution_id
                   and e.flow_id = p_flow_id) then
    perform ff._refuse('WF216', 'not_in_flow', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id),
      'flow_id', format('{fp:%s}:%s', p_partition_key, p_flow_id)));
  end if;
end;
$$;
