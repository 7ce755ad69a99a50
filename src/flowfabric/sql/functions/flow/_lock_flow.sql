-- Lock one flow before its graph changes, waiting up to 2 s. Refuses with flow_not_found if the
-- flow does not exist in the caller's namespace.
drop function if exists ff._lock_flow;
create function ff._lock_flow(p_partition_key smallint, p_namespace text, p_flow_id uuid)
returns ff.flow
language plpgsql
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_flow ff.flow;
begin
  select f.* into v_flow
  from ff.flow f
  where f.partition_key = p_partition_key and f.flow_id = p_flow_id
    and case when p_namespace is null then true else f.namespace = p_namespace end
  for update;
  if not found then
    perform ff._refuse('WF305', 'flow_not_found', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_flow_id)));
  end if;
  return v_flow;
end;
$$;
