-- Clear the waits that no signal has answered. Such a wait is still open, or it was ended by its
-- timeout or by an operator. The next run of the handler opens the wait again. The caller has
-- locked the executions.
--
-- The rows of these waits stay, because each has a position in the journal. Waitpoints that were
-- closed with these waits are opened again, because the handler still uses the tokens in the
-- journal.
drop function if exists ff._drop_unanswered;
create function ff._drop_unanswered(p_partition_key smallint, p_execution_ids uuid[])
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
  v_wait record;
begin
  for v_wait in
    select s.execution_id, s.condition from ff.step s
    where s.partition_key = p_partition_key and s.execution_id = any (p_execution_ids)
      and s.kind = 'wait' and s.taken_as is distinct from 'signals' and s.taken_as is not null
  loop
    update ff.waitpoint w set closed_at = null, close_reason = null
    where w.partition_key = p_partition_key and w.execution_id = v_wait.execution_id
      and w.waitpoint_id = any (ff._waitpoints_in(v_wait.condition))
      and w.close_reason in ('timed_out', 'resumed') and not exists (
        select from ff.signal g
        where g.partition_key = p_partition_key and g.execution_id = v_wait.execution_id
          and coalesce(g.waitpoint_id, g.answered_id) = w.waitpoint_id
          and g.wait_name is not null
        offset 0);
  end loop;
  update ff.step s set
    opened_at = null,
    until_at = null,
    ready_at = null,
    taken_at = null,
    taken_as = null,
    value = null,
    encoding = null
  from (select p_partition_key as pk, u.id from unnest(p_execution_ids) u(id) offset 0) i
  where s.partition_key = i.pk and s.execution_id = i.id
    and s.kind = 'wait' and s.taken_as is distinct from 'signals';
end;
$$;
