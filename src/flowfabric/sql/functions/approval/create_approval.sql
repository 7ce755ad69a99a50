-- Ask 1 to 64 approvers a question, on behalf of the lease holder. Each approver gets a waitpoint
-- and a token.
--
-- The caller makes the ids of the approval and of its waitpoints. The answer has the tokens in the
-- order of p_approvers. Tokens are not stored; the same ids always give the same tokens.
--
-- The approval is granted once p_need approvers have approved. It is denied once p_deny approvers
-- have rejected. Each approver answers once.
--
-- Moves:    only if the holder is late: its expired lease is marked (T19), or its overdue execution
--           is settled as by ff.expire_executions (T24, T23, T5, T4, T18)
-- Refuses:  WF001 invalid_input · WF246 no_signing_key · as outcome: not_found · not_active
--           · lease_revoked · lease_expired · stale_lease · invalid
-- Locks:    the execution, waiting up to 2 s
-- Repeat:   the same tokens while the holder has its lease; the question and the details of the
--           first call are kept
-- Rights:   app
drop function if exists ff.create_approval;
create function ff.create_approval(
  p_partition_key    smallint,
  p_namespace        text,
  p_execution_id     uuid,
  p_lease_id         uuid,
  p_epoch            bigint,
  p_attempt_id       uuid,
  p_approval_id      uuid,
  p_waitpoint_ids    uuid[],
  p_approvers        text[],
  p_question         text,
  p_details          bytea,
  p_details_encoding text,
  p_need             integer,
  p_deny             integer,
  p_step_name        text default null,
  p_step_occurrence  integer default null
)
returns table (outcome text, tokens text[], detail jsonb)
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
  v_verdict ff.verdict;
  v_problem text[];
  v_kid     text;
  v_now     timestamptz;
  v_tokens  text[] := '{}';
  v_row     record;
begin
  perform ff._check_namespace(p_namespace);
  v_problem := ff._approval_problem(
    p_approval_id, p_waitpoint_ids, p_approvers, p_question, p_details, p_details_encoding, p_need,
    p_deny);
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_verdict := (ff._enforce_leases(
    p_partition_key, p_namespace, null, array[p_execution_id], array[p_lease_id],
    array[p_epoch], array[p_attempt_id], true))[1];
  if v_verdict.word <> 'leased' then
    return query select v_verdict.word, null::text[], v_verdict.detail;
    return;
  end if;
  if (select count(*) from ff.waitpoint w
      where w.partition_key = p_partition_key and w.execution_id = p_execution_id
        and w.closed_at is null) + cardinality(p_approvers) > 1000 then
    return query select 'invalid', null::text[], jsonb_build_object(
      'field', 'approvers', 'problem', 'an execution has at most 1000 open waitpoints');
    return;
  end if;
  v_now := ff.now();
  v_kid := ff._require_token_key();
  insert into ff.approval (
    partition_key, execution_id, approval_id, question, details, details_encoding, need_count,
    deny_count, created_at)
  values (
    p_partition_key, p_execution_id, p_approval_id, p_question, p_details, p_details_encoding,
    p_need, p_deny, v_now)
  on conflict do nothing;
  insert into ff.waitpoint (
    partition_key, execution_id, waitpoint_id, key, attempt_index, kid, created_at, step_name,
    step_occurrence, approval_id)
  select p_partition_key, p_execution_id, u.id, u.approver, v_verdict.attempt_index, v_kid,
         v_now, p_step_name, p_step_occurrence, p_approval_id
  from unnest(p_waitpoint_ids, p_approvers) u(id, approver)
  on conflict do nothing;
  for v_row in
    select u.id, u.approver, w.kid, w.key, w.approval_id
    from unnest(p_waitpoint_ids, p_approvers) with ordinality u(id, approver, n)
    cross join lateral (
      select x.kid, x.key, x.approval_id from ff.waitpoint x
      where x.partition_key = p_partition_key and x.execution_id = p_execution_id
        and x.waitpoint_id = u.id
      offset 0) w
    order by u.n
  loop
    if v_row.key <> v_row.approver or v_row.approval_id is distinct from p_approval_id then
      perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
        'field', 'waitpoint_ids', 'problem', 'are in use: mint an id for each waitpoint'));
    end if;
    v_tokens := v_tokens || ff._sign_waitpoint(
      v_row.kid, p_partition_key, p_execution_id, v_row.id);
  end loop;
  return query select 'created', v_tokens, null::jsonb;
end;
$$;
