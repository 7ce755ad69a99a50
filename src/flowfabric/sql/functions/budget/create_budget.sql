-- Create a budget. A budget limits what the executions under it may use in one period.
--
-- Dimensions and limits are parallel arrays. A limit is a whole number, at least 1; null means no
-- limit. A hard limit refuses a report that would take the usage above the limit. Once the used and
-- the refused amounts together reach a hard limit, no execution under the budget starts. Usage
-- above a soft limit is applied, and reported as soft_breach.
--
-- p_period is hour, day, week, month or `interval`. The first four follow the calendar of the time
-- zone p_period_zone (default UTC). An `interval` lasts p_period_length; the first one begins when
-- the budget is created. If p_period is null, the budget is never reset.
--
-- p_on_exceed decides what a hard limit does to a running execution. `fail` refuses the usage and
-- reports the breach. `suspend` also ends the lease, and the execution waits until the budget has
-- room. `warn` treats hard limits as soft limits.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none; waits up to 2 s for a concurrent call that creates the same budget
-- Repeat:   `already_satisfied`; an existing budget is not changed
-- Rights:   app
drop function if exists ff.create_budget;
create function ff.create_budget(
  p_namespace     text,
  p_budget        text,
  p_key           text,
  p_dimensions    text[],
  p_hard_limits   bigint[],
  p_soft_limits   bigint[] default null,
  p_period        text default null,
  p_period_zone   text default null,
  p_period_length interval default null,
  p_on_exceed     text default 'fail',
  p_actor         text default null
)
returns table (outcome text, budget_id bigint, next_reset_at timestamptz)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     constant timestamptz := ff.now();
  v_key     constant text := coalesce(p_key, '');
  v_id      constant bigint := ff._hash_gate(true, p_namespace, p_budget, v_key);
  v_problem text[];
  v_is_new  boolean;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_actor_and_reason(p_actor, null);
  v_problem := coalesce(
    ff._gate_name_problem('budget', p_namespace, p_budget, v_key),
    ff._budget_problem(p_dimensions, p_hard_limits, p_soft_limits, p_period, p_period_zone,
                       p_period_length, p_on_exceed));
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]));
  end if;
  insert into ff.budget (
    budget_id, namespace, budget, key, on_exceed, period, period_zone, period_length,
    period_started_at, next_reset_at, created_at, created_by)
  values (v_id, p_namespace, p_budget, v_key, p_on_exceed::ff.on_exceed,
          p_period::ff.budget_period, p_period_zone, p_period_length, v_now,
          ff._next_reset(p_period::ff.budget_period, p_period_zone, p_period_length, v_now, v_now),
          v_now, p_actor)
  on conflict do nothing;
  v_is_new := found;
  if v_is_new then
    insert into ff.budget_dimension (budget_id, dimension, declared_hard, declared_soft)
    select v_id, u.dimension, u.hard, u.soft
    from unnest(p_dimensions, p_hard_limits, p_soft_limits) u(dimension, hard, soft);
    perform ff._write_audit(
      p_namespace, p_actor, 'create_budget', concat_ws(' ', p_budget, nullif(p_key, '')), null, null,
      jsonb_build_object('dimensions', p_dimensions, 'hard_limits', p_hard_limits));
  end if;
  return query
  select case when v_is_new then 'created' else 'already_satisfied' end, b.budget_id,
         b.next_reset_at
  from ff.budget b where b.budget_id = v_id;
end;
$$;
