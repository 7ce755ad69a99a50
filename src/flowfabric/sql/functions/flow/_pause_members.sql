-- Pause the waiting members of a cancelled flow, so that no claim takes them (T6, quiet). Another
-- call cancels them later. Locked rows are skipped.
--
-- A member that waits for runs is not paused. No claim can take it, and its row counts the runs
-- that it waits for.
drop function if exists ff._pause_members;
create function ff._pause_members(
  p_partition_key smallint,
  p_flow_id       uuid,
  p_reason        text,
  p_now           timestamptz
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_paused uuid[];
begin
  with waiting as materialized (
    select p_partition_key as pk, e.execution_id
    from ff.execution e
    where e.partition_key = p_partition_key and e.flow_id = p_flow_id
      and case when e.phase = 'runnable' and e.wait_left is null then true else false end
    for no key update skip locked
  ),
  paused as (
    update ff.execution e set
      eligibility = 'blocked_by_operator',
      line_id = null,
      blocking_reason = 'paused_by_flow_cancel',
      blocking_detail = p_reason,
      blocked_at = greatest(p_now, e.transitioned_at),
      -- If a member is paused or held already, its state does not change, so it keeps its cause.
      cause = case when e.eligibility = 'blocked_by_operator' then e.cause else 'block' end,
      delayed_until = null,
      due_at = e.deadline_at,
      transitioned_at = case when e.eligibility = 'blocked_by_operator'
                          then e.transitioned_at else greatest(p_now, e.transitioned_at) end,
      mutated_at = greatest(p_now, e.transitioned_at, e.mutated_at)
    from waiting w
    where e.partition_key = w.pk and e.execution_id = w.execution_id
    returning e.execution_id
  )
  select array_agg(p.execution_id) into v_paused from paused p;

  delete from ff.grant g
  using (select p_partition_key as pk, u.id from unnest(v_paused) u(id) offset 0) i
  where g.partition_key = i.pk and g.execution_id = i.id;
end;
$$;
