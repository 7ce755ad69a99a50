-- Return the signals that ended the latest suspension of an execution, for the holder of its lease.
--
-- If the timeout ended the suspension, the call returns one signal with the name `timeout` and the
-- source type `system`. This signal has no id and is stored nowhere.
--
-- The call returns nothing if the suspension belongs to an earlier attempt, or if neither signals
-- nor the timeout ended the suspension.
--
-- Moves:    nothing
-- Refuses:  WF101 stale_lease · WF301 not_found
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.observe_signals;
create function ff.observe_signals(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_lease_id      uuid,
  p_epoch         bigint,
  p_attempt_id    uuid
)
returns table (
  signal_id        uuid,
  name             text,
  category         text,
  source_type      text,
  source_identity  text,
  correlation_id   text,
  payload          bytea,
  payload_encoding text,
  accepted_at      timestamptz
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_row        ff.execution;
  v_suspension ff.suspension;
begin
  perform ff._check_namespace(p_namespace);
  select e.* into v_row from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    and case when p_namespace is null then true else e.namespace = p_namespace end;
  if not found then
    perform ff._refuse('WF301', 'not_found', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id)));
  end if;
  if v_row.lease_id is distinct from p_lease_id or v_row.epoch is distinct from p_epoch
     or v_row.attempt_id is distinct from p_attempt_id then
    perform ff._refuse('WF101', 'stale_lease', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id)));
  end if;
  select s.* into v_suspension from ff.suspension s
  where s.partition_key = p_partition_key and s.execution_id = p_execution_id
  order by s.suspended_at desc
  limit 1;
  if v_suspension.attempt_index is distinct from v_row.attempt_index then
    return;
  end if;
  if v_suspension.close_reason = 'timed_out_auto_resume' then
    return query
    select null::uuid, 'timeout', 'system', 'system', null::text, null::text, null::bytea,
           null::text, v_suspension.closed_at;
    return;
  end if;
  return query
  select g.signal_id, g.name, g.category, g.source_type, g.source_identity, g.correlation_id,
         g.payload, g.payload_encoding, g.accepted_at
  from jsonb_array_elements_text(v_suspension.woken_by -> 'signal_ids') u(id)
  cross join lateral (
    select x.* from ff.signal x
    where x.partition_key = p_partition_key and x.execution_id = p_execution_id
      and x.signal_id = u.id::uuid
    offset 0) g
  order by g.accepted_at, g.signal_id;
end;
$$;
