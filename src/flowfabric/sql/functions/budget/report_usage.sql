-- Report the usage of running executions to all their budgets.
--
-- The usage of an item is a JSON object that maps dimensions to whole numbers. The usage is applied
-- to all budgets of the execution or to none of them. If the execution has no budgets, the outcome
-- is ok.
--
-- The outcomes are: ok (applied) · soft_breach (applied, and above a soft limit) · hard_breach
-- (nothing applied) · already_applied (a report with the same dedup key was applied in the last 24
-- hours) · suspended (nothing applied: a hard breach of a budget whose on_exceed is `suspend`). The
-- detail of a breach names budget, key, dimension, usage, limit and on_exceed. If the breached
-- budget only warns, the outcome is soft_breach, and an event is written.
--
-- If the outcome is suspended, the call ends the lease, and the execution waits in the line of the
-- budget until the budget has room. An amount that is larger than the hard limit itself can never
-- fit. In that case the outcome is hard_breach instead of suspended.
--
-- Moves:    active -> runnable blocked by budget (T15); a running execution gets an event (T32); an
--           expired lease is marked (T19); an overdue execution is settled as by
--           ff.expire_executions (T24, T23, T5, T4, T18)
-- Refuses:  WF001 invalid_input · per item: busy · not_found · duplicate · not_active
--           · lease_revoked · lease_expired · stale_lease · invalid · hard_breach
-- Locks:    executions in id order, without waiting (if p_wait is true, waits up to 2 s for the
--           only item); then their budgets in id order, waiting up to 2 s; then lines
-- Repeat:   `suspended` if the first answer was `suspended`; `already_applied` for 24 hours if the
--           item has a dedup key and the first report was applied to a budget; otherwise the usage
--           is reported again
-- Rights:   app
drop function if exists ff.report_usage;
create function ff.report_usage(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[],
  p_lease_ids     uuid[],
  p_epochs        bigint[],
  p_attempt_ids   uuid[],
  p_usages        jsonb[],
  p_dedup_keys    text[] default null,
  p_wait          boolean default false
)
returns table (item integer, outcome text, detail jsonb)
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
  v_now     timestamptz;
  v_judged  ff.verdict[];
  v_verdict ff.verdict;
  v_budgets bigint[];
  v_problem text[];
  v_answer  jsonb;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(cardinality(p_execution_ids), array[
    cardinality(p_lease_ids), cardinality(p_epochs), cardinality(p_attempt_ids),
    cardinality(p_usages), cardinality(p_dedup_keys)], p_wait,
    array[
      array_lower(p_execution_ids, 1), array_ndims(p_execution_ids),
      array_lower(p_lease_ids, 1), array_ndims(p_lease_ids),
      array_lower(p_epochs, 1), array_ndims(p_epochs),
      array_lower(p_attempt_ids, 1), array_ndims(p_attempt_ids),
      array_lower(p_usages, 1), array_ndims(p_usages),
      array_lower(p_dedup_keys, 1), array_ndims(p_dedup_keys)]);
  v_judged := ff._enforce_leases(
    p_partition_key, p_namespace, 'release', p_execution_ids, p_lease_ids, p_epochs, p_attempt_ids,
    p_wait);
  v_budgets := array(
    select distinct b.id
    from unnest(v_judged) j
    cross join lateral (
      select e.budget_ids from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = j.execution_id offset 0) x
    cross join lateral unnest(x.budget_ids) b(id)
    where j.word = 'leased'
    order by b.id);
  perform ff._refresh_budgets(v_budgets);
  v_now := ff.now();
  foreach v_verdict in array v_judged loop
    item := v_verdict.item;
    outcome := v_verdict.word;
    detail := v_verdict.detail;
    if v_verdict.word = 'repeat' then
      outcome := 'suspended';
    elsif v_verdict.word = 'leased' then
      v_problem := ff._usage_problem(p_usages[item], p_dedup_keys[item]);
      if v_problem is not null then
        outcome := 'invalid';
        detail := jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]);
      else
        select e.budget_ids into v_budgets from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = v_verdict.execution_id;
        v_answer := jsonb_build_object('outcome', 'ok');
        if v_budgets is not null then
          v_answer := ff._charge_budgets(
            v_budgets, p_usages[item], p_dedup_keys[item], null, v_now);
        end if;
        outcome := v_answer ->> 'outcome';
        detail := nullif(v_answer - 'outcome' - 'budget_id', '{}');
        if outcome = 'hard_breach' and v_answer ->> 'on_exceed' = 'suspend'
           and (v_answer ->> 'amount')::numeric <= (v_answer ->> 'limit')::numeric then
          outcome := 'suspended';
          perform ff._stand_in_budget_line(
            p_partition_key, v_verdict.execution_id, (v_answer ->> 'budget_id')::bigint, detail,
            v_now);
        elsif outcome = 'soft_breach' and v_answer ->> 'on_exceed' = 'warn' then
          perform ff._warn_of_budget(p_partition_key, v_verdict.execution_id, detail, v_now);
        end if;
      end if;
    end if;
    return next;
  end loop;
end;
$$;
