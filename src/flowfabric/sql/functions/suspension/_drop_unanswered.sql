-- Forget the waits of executions that no signal has answered, because a retry or a replay asks
-- again. Their rows stay, because later steps follow them. The caller holds the row locks.
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
begin
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
