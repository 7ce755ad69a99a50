-- Change the priority of a runnable execution. A value below 0 becomes 0, and a value above 9000
-- becomes 9000.
--
-- Moves:    runnable -> runnable, at another position in the claim order (T11)
-- Refuses:  WF001 invalid_input · WF205 not_eligible · WF301 not_found
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   `already_applied` if p_if_version is given, because the version has changed; otherwise
--           sets the same priority again and writes another event
-- Rights:   app
drop function if exists ff.change_priority;
create function ff.change_priority(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_priority      integer,
  p_reason        text default null,
  p_actor         text default null,
  p_if_version    integer default null
)
returns table (outcome text, public_state text, version integer, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
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
  v_now        timestamptz;
  v_xid        xid8;
  v_generation integer;
  v_rank       constant smallint := 9000 - least(greatest(p_priority, 0), 9000);
  v_change     jsonb;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  if p_priority is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'priority', 'problem', 'must be a whole number'));
  end if;
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.version <> p_if_version then
    return query select 'already_applied', v_row.public_state::text, v_row.version,
                        jsonb_build_object('new_priority', 9000 - v_row.rank);
    return;
  end if;
  if v_row.phase <> 'runnable' then
    perform ff._refuse('WF205', 'not_eligible', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id), 'state', v_row.public_state,
      'hint', 'only the priority of a waiting execution can be changed'));
  end if;
  v_now := ff.now();
  v_xid := pg_current_xact_id();
  v_generation := ff._enter_generation(p_partition_key);
  v_change := jsonb_build_object('old_priority', 9000 - v_row.rank, 'new_priority', 9000 - v_rank);
  with changed as (
    update ff.execution e set
      rank = v_rank,
      cause = 'change_priority',
      version = e.version + 1,
      mutated_at = greatest(v_now, e.mutated_at)
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    returning e.version, e.mutated_at
  )
  insert into ff.event (
    partition_key, generation, xid, execution_id, version, kind, route_id, flow_id, namespace,
    instance_tag, occurred_at, actor, detail)
  select p_partition_key, v_generation, v_xid, p_execution_id, c.version, 'priority_changed',
         v_row.route_id, v_row.flow_id, v_row.namespace, v_row.instance_tag, c.mutated_at, p_actor,
         v_change || jsonb_strip_nulls(jsonb_build_object('reason', p_reason))
  from changed c;
  perform ff._write_execution_audit(
    p_partition_key, v_row, p_actor, 'change_priority', p_reason,
    v_change);
  return query select 'changed', v_row.public_state::text, v_row.version + 1, v_change;
end;
$$;
