-- Refuse to lease a member of a cancelled flow.
drop function if exists ff._check_flow_not_cancelled;
create function ff._check_flow_not_cancelled(p_partition_key smallint, p_flow_id uuid)
returns void
language plpgsql
stable
as $$
begin
  if ff._is_flow_cancelled(p_partition_key, p_flow_id) then
    perform ff._refuse('WF207', 'not_leaseable', jsonb_build_object(
      'flow_id', format('{fp:%s}:%s', p_partition_key, p_flow_id),
      'problem', 'its flow is cancelled'));
  end if;
end;
$$;
