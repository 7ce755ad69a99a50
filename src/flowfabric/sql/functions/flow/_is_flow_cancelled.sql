-- Tell whether the members of a flow can no longer be claimed or retried. This is so if the flow
-- was cancelled with a cancel policy other than flow_only.
drop function if exists ff._is_flow_cancelled;
create function ff._is_flow_cancelled(p_partition_key smallint, p_flow_id uuid)
returns boolean
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  return p_flow_id is not null and exists (
    select from ff.flow f
    where f.partition_key = p_partition_key and f.flow_id = p_flow_id
      and case when f.cancel_policy <> 'flow_only' then true else false end);
end;
$$;
