-- Reset budgets whose period has ended. This is a reconciler.
--
-- The call also corrects next_reset_at of shut budgets if the clock went back. It deletes the dedup
-- key of a report after 24 hours. It deletes ledger entries of past periods, and ledger entries
-- whose last spend was 30 days ago.
--
-- If the login is bound to a namespace, the call handles only the budgets of that namespace. A call
-- resets at most p_limit budgets, and deletes at most ten times p_limit rows of each kind. If
-- handled is p_limit, more may be left. due_in is the time until the next period ends.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    due budgets, skipping locked ones; then their lines; then shut budgets, reports and
--           ledger entries, skipping locked ones
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   app
drop function if exists ff.reset_due_budgets;
create function ff.reset_due_budgets(p_limit integer default 100)
returns table (handled integer, due_in interval)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     constant timestamptz := ff.now();
  v_bound   constant text := ff._read_bound_namespace();
  v_due     bigint[];
  v_shut    bigint[];
  v_reports integer;
  v_past    integer;
  v_old     integer;
begin
  perform ff._check_pass(p_limit);
  v_due := array(
    select b.budget_id from ff.budget b
    where b.next_reset_at <= v_now and (v_bound is null or b.namespace = v_bound)
    order by b.next_reset_at
    limit p_limit
    for no key update skip locked);
  for v_nth in 1..cardinality(v_due) loop
    perform ff._reset_budget(v_due[v_nth], v_now);
  end loop;
  -- Reports of usage correct the next reset of a budget. A shut budget gets no reports, so its next
  -- reset is corrected here.
  v_shut := array(
    select b.budget_id from ff.budget b
    where b.is_shut and b.next_reset_at is not null
      and (v_bound is null or b.namespace = v_bound)
    order by b.next_reset_at desc
    limit p_limit
    for no key update skip locked);
  perform ff._correct_resets(v_shut, v_now);
  delete from ff.budget_report r
  using (
    select x.budget_id, x.dedup_key from ff.budget_report x
    where x.expires_at <= v_now
      and (v_bound is null or exists (
        select from ff.budget b where b.budget_id = x.budget_id and b.namespace = v_bound offset 0))
    order by x.expires_at
    limit 10 * p_limit
    for update skip locked) t
  where r.budget_id = t.budget_id and r.dedup_key = t.dedup_key;
  get diagnostics v_reports = row_count;
  delete from ff.budget_ledger l
  using (
    select x.budget_id, x.execution_id, x.dimension
    from ff.budget b
    cross join lateral (
      select y.budget_id, y.execution_id, y.dimension from ff.budget_ledger y
      where y.budget_id = b.budget_id and y.period_no < b.period_no
      limit 10 * p_limit
      for update skip locked) x
    where b.period_no > 0 and (v_bound is null or b.namespace = v_bound)
    limit 10 * p_limit) t
  where l.budget_id = t.budget_id and l.execution_id = t.execution_id
    and l.dimension = t.dimension;
  get diagnostics v_past = row_count;
  delete from ff.budget_ledger l
  using (
    select x.budget_id, x.execution_id, x.dimension from ff.budget_ledger x
    where x.spent_at <= v_now - interval '30 days'
      and (v_bound is null or exists (
        select from ff.budget b where b.budget_id = x.budget_id and b.namespace = v_bound offset 0))
    order by x.spent_at
    limit 10 * p_limit
    for update skip locked) t
  where l.budget_id = t.budget_id and l.execution_id = t.execution_id
    and l.dimension = t.dimension;
  get diagnostics v_old = row_count;
  handled := greatest(cardinality(v_due), ceil(greatest(v_reports, v_past, v_old) / 10.0));
  due_in := (
    select min(b.next_reset_at) - v_now from ff.budget b
    where b.next_reset_at > v_now and (v_bound is null or b.namespace = v_bound));
  return next;
end;
$$;
