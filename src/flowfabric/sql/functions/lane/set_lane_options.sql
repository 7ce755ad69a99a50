-- Set the options of a lane: how many of its executions run at the same time, how many start in a
-- time window, and how fair keys take turns.
--
-- p_options is a JSON object. `concurrency` is how many executions of the lane run at the same
-- time. `rate` is how many start in a window of `rate_window_ms` milliseconds. `weights` maps a
-- fair key to its number of turns (1 to 100); a key without a weight gets one turn. `fair_by` is
-- the name of the argument by which executions take turns. Submitters compute the fair keys and
-- pass them as fair_key.
--
-- If p_is_declared is true, the code of an app sets the options. p_options then has all options and
-- replaces the options that were declared before. The call creates the lane if it does not exist.
--
-- If p_is_declared is false, an operator sets the options. The operator cannot set `fair_by`. An
-- omitted field keeps the value in force, and a null field removes the value. After such a call,
-- the declared options are ignored, except `fair_by`. If p_options itself is null, the options of
-- the operator are removed, and the declared options are in force again.
--
-- `concurrency` and `rate` also apply to executions that were submitted earlier. A change stops no
-- running execution. An execution that was claimed while the lane had no limit is not counted until
-- it is claimed again. Weights apply to executions that are submitted from now on.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF303 lane_not_found
-- Locks:    the row of the lane, then its quota and gates, waiting up to 2 s
-- Repeat:   `unchanged`, and the options in force
-- Rights:   app
drop function if exists ff.set_lane_options;
create function ff.set_lane_options(
  p_namespace   text,
  p_lane        text,
  p_options     jsonb,
  p_is_declared boolean default false,
  p_reason      text default null,
  p_actor       text default null
)
returns table (outcome text, lane text, options jsonb, is_set boolean)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now      constant timestamptz := ff.now();
  v_declares constant boolean := coalesce(p_is_declared, false);
  v_problem  text[];
  v_lane     ff.lane;
  v_old      jsonb;
  v_new      jsonb;
  v_gate     bigint;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  v_problem := case
    when p_namespace is null
      then array['namespace', 'must be given: a lane belongs to one namespace']
    when p_lane is null or p_lane !~ '^[ -~]{1,64}$'
      then array['lane', 'must be 1 to 64 printable ASCII characters']
    when p_options is null and v_declares then array['options', 'must be given']
    when not v_declares and p_options ? 'fair_by'
      then array['fair_by', 'is declared in code, because submitters compute the keys']
    else ff._lane_options_problem(p_options) end;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  if v_declares then
    insert into ff.lane (namespace, lane, registered_at, registered_by)
    values (p_namespace, p_lane, v_now, coalesce(p_actor, 'set_lane_options'))
    on conflict do nothing;
  end if;
  v_lane := ff._lock_lane(p_namespace, p_lane);
  v_old := coalesce(v_lane.options, v_lane.declared, '{}');
  if v_declares then
    v_lane.declared := nullif(jsonb_strip_nulls(p_options), '{}');
  elsif p_options is null then
    v_lane.options := null;
  else
    v_lane.options := jsonb_strip_nulls(v_old || p_options) - 'fair_by';
  end if;
  v_new := coalesce(v_lane.options, v_lane.declared, '{}');
  -- Check the merged options: a rate may be new while its window was set before.
  v_problem := ff._lane_options_problem(v_new);
  if v_problem is null and (v_new ? 'rate') <> (v_new ? 'rate_window_ms') then
    v_problem := array['rate', 'must be given with its window'];
  end if;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_gate := ff._limit_lane(p_namespace, p_lane, v_lane.gate_id, v_old, v_new, p_actor, v_now);
  update ff.lane l set
    declared = v_lane.declared,
    options = v_lane.options,
    gate_id = v_gate,
    weights = v_new -> 'weights'
  where l.namespace = p_namespace and l.lane = p_lane
    and (l.declared, l.options) is distinct from (v_lane.declared, v_lane.options);
  outcome := case when found then 'changed' else 'unchanged' end;
  if outcome = 'changed' and not v_declares then
    perform ff._write_audit(
      p_namespace, p_actor, 'set_lane_options', p_lane, p_reason, v_old, v_new);
  end if;
  lane := p_lane;
  options := v_new || jsonb_strip_nulls(jsonb_build_object('fair_by', v_lane.declared ->> 'fair_by'));
  is_set := v_lane.options is not null;
  return next;
end;
$$;
