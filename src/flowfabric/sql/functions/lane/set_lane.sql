-- Change the state of a lane, its retention, or both.
--
-- An active lane takes submits and claims. A paused lane takes only submits, until it is resumed or
-- until p_resumes_at. A draining lane takes only claims. A disabled lane takes neither. Every
-- submit and claim reads the state, so a change also applies to executions that are already
-- waiting.
--
-- If the state or the retention is null, it stays as it is. p_clear_retention restores the default
-- retention. Only an operator may change the retention.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF303 lane_not_found · WF501 forbidden (change of the retention)
-- Locks:    the row of the lane, waiting up to 2 s
-- Repeat:   `unchanged`, and the lane as it is
-- Rights:   app
drop function if exists ff.set_lane;
create function ff.set_lane(
  p_namespace       text,
  p_lane            text,
  p_state           text default null,
  p_resumes_at      timestamptz default null,
  p_retention       interval default null,
  p_clear_retention boolean default false,
  p_reason          text default null,
  p_actor           text default null
)
returns table (
  outcome    text,
  namespace  text,
  lane       text,
  state      text,
  resumes_at timestamptz,
  retention  interval,
  reason     text,
  changed_by text,
  changed_at timestamptz
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_field   text;
  v_problem text;
  v_state   ff.lane_state;
  v_before  jsonb;
  v_changed boolean;
begin
  perform ff._check_namespace(p_namespace);
  if p_retention is not null or p_clear_retention then
    perform ff._check_operator('the retention of a lane');
  end if;
  perform ff._check_actor_and_reason(p_actor, p_reason);
  if p_namespace is null then
    v_field := 'namespace'; v_problem := 'must be given: a lane belongs to one namespace';
  elsif p_lane is null then
    v_field := 'lane'; v_problem := 'must be given';
  elsif p_state not in ('active', 'paused', 'draining', 'disabled') then
    v_field := 'state'; v_problem := 'must be active, paused, draining or disabled';
  elsif p_resumes_at is not null and p_state is distinct from 'paused' then
    v_field := 'resumes_at'; v_problem := 'belongs to the state paused only';
  elsif p_resumes_at >= timestamptz '9999-01-01 00:00:00+00' then
    v_field := 'resumes_at'; v_problem := 'must be before the year 9999';
  elsif p_clear_retention is null or (p_clear_retention and p_retention is not null) then
    v_field := 'clear_retention'; v_problem := 'must be false when there is a retention';
  elsif not ff._is_within(p_retention, interval '0', interval '36525 days') then
    v_field := 'retention';
    v_problem := 'must be between 0 and a hundred years, in days or smaller units';
  elsif p_state is null and p_retention is null and not p_clear_retention then
    v_field := 'state'; v_problem := 'must be given, or a retention';
  end if;
  if v_field is null then
    v_now := ff.now();
    -- A repeated call may arrive after the end of the pause that it asks for.
    if p_resumes_at <= v_now and not exists (
         select from ff.lane l
         where l.namespace = p_namespace and l.lane = p_lane and l.state = 'paused' and l.resumes_at = p_resumes_at) then
      v_field := 'resumes_at'; v_problem := 'must be in the future';
    end if;
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_field, 'problem', v_problem));
  end if;

  v_state := p_state;
  select jsonb_build_object('state', l.state, 'resumes_at', l.resumes_at, 'retention', l.retention)
    into v_before
  from ff.lane l
  where l.namespace = p_namespace and l.lane = p_lane;
  update ff.lane l set
    state = coalesce(v_state, l.state),
    resumes_at = case when p_state is null then l.resumes_at else p_resumes_at end,
    retention = case when p_clear_retention then null else coalesce(p_retention, l.retention) end,
    -- If only the retention changes, the reason for the state stays.
    reason = case when p_state is null then coalesce(p_reason, l.reason) else p_reason end,
    changed_by = p_actor,
    changed_at = greatest(v_now, l.changed_at)
  where l.namespace = p_namespace and l.lane = p_lane
    and (l.state, l.resumes_at, l.retention, l.reason, l.changed_by) is distinct from (
      coalesce(v_state, l.state),
      case when p_state is null then l.resumes_at else p_resumes_at end,
      case when p_clear_retention then null else coalesce(p_retention, l.retention) end,
      case when p_state is null then coalesce(p_reason, l.reason) else p_reason end, p_actor);
  v_changed := found;
  if v_changed then
    perform ff._write_audit(
      p_namespace, p_actor, 'set_lane', p_lane, p_reason, v_before,
      jsonb_build_object('state', p_state, 'resumes_at', p_resumes_at, 'retention', p_retention));
  end if;
  return query
  select case when v_changed then 'changed' else 'unchanged' end, l.namespace, l.lane, l.state::text,
         l.resumes_at, l.retention, l.reason, l.changed_by, l.changed_at
  from ff.lane l where l.namespace = p_namespace and l.lane = p_lane;
  if not found then
    perform ff._refuse('WF303', 'lane_not_found', jsonb_build_object('lane', p_lane));
  end if;
  if v_changed and p_state in ('active', 'draining') then
    perform pg_notify('ff_ready', concat_ws(' ', p.partition_key, p_namespace, p_lane))
    from (select generate_series(0, m.value::integer - 1) as partition_key
          from ff.meta m where m.name = 'partitions') p;
  end if;
end;
$$;
