-- Pause or resume a schedule.
--
-- Times that pass during a pause do not fire later. Pausing a paused schedule again replaces the
-- reason and the actor.
--
-- A resumed schedule continues at p_next_at, which the caller computed from rule number p_rule_no.
-- If the rule has changed since, the schedule stays paused, and the outcome is `rule_changed`.
-- Resuming a schedule that is not paused does nothing. An orphaned schedule stays orphaned.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF304 schedule_not_found
-- Locks:    the row of the schedule, waiting up to 2 s
-- Repeat:   `unchanged`; after `rule_changed`, `rule_changed` again
-- Rights:   app
drop function if exists ff.set_schedule;
create function ff.set_schedule(
  p_namespace text,
  p_app       text,
  p_name      text,
  p_is_paused boolean,
  p_next_at   timestamptz default null,
  p_rule_no   integer default null,
  p_reason    text default null,
  p_actor     text default null
)
returns table (outcome text, state text, next_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now      timestamptz;
  v_field    text;
  v_problem  text;
  v_changed  boolean;
  v_schedule ff.schedule;
  v_was_paused boolean;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, p_reason);
  if p_is_paused is null then
    v_field := 'is_paused'; v_problem := 'must be true or false';
  elsif not p_is_paused and p_rule_no is null then
    v_field := 'rule_no'; v_problem := 'must be given to resume';
  elsif not p_is_paused and (p_next_at is null or p_next_at < timestamptz '0001-01-02 00:00:00+00'
        or p_next_at >= timestamptz '9999-01-01 00:00:00+00') then
    v_field := 'next_at'; v_problem := 'must be given to resume, before the year 9999';
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_field, 'problem', v_problem));
  end if;

  v_now := ff.now();
  select s.is_paused into v_was_paused
  from ff.schedule s
  where s.namespace = p_namespace and s.app = p_app and s.name = p_name;
  update ff.schedule s set
    is_paused = p_is_paused,
    next_at = case when not p_is_paused and s.orphaned_at is null then p_next_at end,
    reason = p_reason,
    changed_by = p_actor,
    changed_at = greatest(v_now, s.changed_at)
  where s.namespace = p_namespace and s.app = p_app and s.name = p_name
    and case when p_is_paused
          then not s.is_paused or (s.reason, s.changed_by) is distinct from (p_reason, p_actor)
          else s.is_paused and s.rule_no = p_rule_no end;
  v_changed := found;
  select s.* into v_schedule
  from ff.schedule s
  where s.namespace = p_namespace and s.app = p_app and s.name = p_name;
  if not found then
    perform ff._refuse('WF304', 'schedule_not_found', jsonb_build_object(
      'schedule', p_name, 'app', p_app));
  end if;
  if v_changed then
    perform ff._write_audit(
      p_namespace, p_actor, 'set_schedule', concat_ws(' ', p_app, p_name), p_reason,
      jsonb_build_object('is_paused', v_was_paused),
      jsonb_build_object('is_paused', p_is_paused));
  end if;
  return query
  select case when v_changed then 'changed'
              when v_schedule.is_paused = p_is_paused then 'unchanged'
              else 'rule_changed' end,
         v_schedule.state::text, v_schedule.next_at;
end;
$$;
