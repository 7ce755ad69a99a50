-- Explain to a former holder how it lost its lease: which event ended the lease, who caused the
-- event, and why. Returns null if the event is gone.
drop function if exists ff._explain_lost_lease;
create function ff._explain_lost_lease(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_lease_id      uuid
)
returns jsonb
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_sort = off
set jit = off
as $$
declare
  v_event   ff.event;
  v_timeout jsonb;
begin
  select e.* into v_event
  from ff.event e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    and e.lease_id = p_lease_id
    and e.kind not in ('claimed', 'resumed', 'reclaimed')
  order by e.generation desc, e.event_id desc
  limit 1;
  if v_event.detail ->> 'category' = 'attempt_timeout' then
    select b.policy -> 'timeout_policy' -> 'attempt_timeout_ms' into v_timeout
    from ff.execution_body b
    where b.partition_key = p_partition_key and b.execution_id = p_execution_id;
  end if;
  return nullif(jsonb_strip_nulls(jsonb_build_object(
    'ended_by', v_event.kind, 'actor', v_event.actor, 'source', v_event.detail -> 'source',
    'because', v_event.detail -> 'reason', 'timeout_ms', v_timeout)), '{}');
end;
$$;
