-- Make a member eligible if it is blocked by dependencies although all its groups are satisfied.
--
-- This call is for repairs by hand. Normally the engine makes a member eligible when its last group
-- is satisfied.
--
-- Moves:    runnable blocked -> runnable eligible (T4, quiet)
-- Refuses:  WF204 already_terminal · WF217 not_runnable · WF218 not_blocked_by_deps
--           · WF219 deps_not_satisfied · WF301 not_found
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   if the member was promoted and has not moved since, the answer is `promoted`
-- Rights:   app
drop function if exists ff.promote_blocked_to_eligible;
create function ff.promote_blocked_to_eligible(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid
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
  v_id   constant text := format('{fp:%s}:%s', p_partition_key, p_execution_id);
  v_row  ff.execution;
  v_now  timestamptz;
  v_open integer;
begin
  perform ff._check_namespace(p_namespace);
  v_row := ff._lock_execution(p_partition_key, p_namespace, p_execution_id);
  if v_row.phase = 'terminal' then
    perform ff._refuse('WF204', 'already_terminal', jsonb_build_object(
      'id', v_id, 'outcome', v_row.outcome));
  elsif v_row.phase <> 'runnable' then
    perform ff._refuse('WF217', 'not_runnable', jsonb_build_object(
      'id', v_id, 'state', v_row.public_state));
  end if;
  if v_row.eligibility = 'eligible_now' and v_row.cause = 'satisfy_dependencies' then
    return query select 'promoted', v_row.public_state::text, v_row.version, null::jsonb;
    return;
  end if;
  if v_row.eligibility <> 'blocked_by_dependencies' then
    perform ff._refuse('WF218', 'not_blocked_by_deps', jsonb_build_object(
      'id', v_id, 'state', v_row.public_state, 'blocking_reason', v_row.blocking_reason));
  end if;
  select count(*) into v_open
  from ff.edge_group y
  where y.partition_key = p_partition_key and y.downstream_id = p_execution_id
    and case when y.n > 0 and y.state <> 'satisfied' then true else false end;
  if v_open > 0 or v_row.wait_left is not null then
    perform ff._refuse('WF219', 'deps_not_satisfied', jsonb_strip_nulls(jsonb_build_object(
      'id', v_id, 'open_groups', v_open, 'open_runs', v_row.wait_left)));
  end if;
  v_now := ff.now();
  perform ff._make_eligible(
    p_partition_key, p_execution_id, 'satisfy_dependencies', null, v_now, null, null);
  return query select 'promoted', 'waiting', v_row.version, null::jsonb;
end;
$$;
