-- Take back the usage that ff.record_spend added for one execution in the current period.
--
-- Usage of earlier periods is not taken back, because the budget no longer counts it. Usage also
-- cannot be taken back once ff.reset_due_budgets has deleted its ledger entry. An entry adds up the
-- spend of one execution in one dimension, and is deleted 30 days after the last spend.
--
-- In each dimension whose usage falls, `refused` becomes 0, because a refused amount may fit now.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF307 budget_not_found
-- Locks:    the budget, then its lines, waiting up to 2 s
-- Repeat:   `released`, with an empty object
-- Rights:   app
drop function if exists ff.release_budget;
create function ff.release_budget(
  p_namespace    text,
  p_budget       text,
  p_key          text,
  p_execution_id uuid
)
returns table (outcome text, released jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_budget ff.budget;
begin
  perform ff._check_namespace(p_namespace);
  v_budget := ff._lock_budget(p_namespace, p_budget, coalesce(p_key, ''));
  with spent as (
    delete from ff.budget_ledger l
    where l.budget_id = v_budget.budget_id and l.execution_id = p_execution_id
    returning l.dimension, l.amount, l.period_no
  ),
  taken as (
    update ff.budget_dimension d set
      usage = greatest(d.usage - s.amount, 0),
      refused = case when s.amount > 0 then 0 else d.refused end
    from spent s
    where d.budget_id = v_budget.budget_id and d.dimension = s.dimension
      and s.period_no = v_budget.period_no
    returning d.dimension, s.amount
  )
  select jsonb_object_agg(t.dimension, t.amount) into released from taken t;
  perform ff._shut_budget(v_budget.budget_id);
  released := coalesce(released, '{}');
  outcome := 'released';
  return next;
end;
$$;
