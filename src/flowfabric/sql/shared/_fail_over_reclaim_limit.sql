-- Fail executions that lost their lease too often, or that crashed three times while they ran alone
-- in their process (T22). The caller has locked the executions.
--
-- The end of one execution can also end other executions in the list, such as its bound children.
-- Executions that have ended in this way stay as they are.
drop function if exists ff._fail_over_reclaim_limit;
create function ff._fail_over_reclaim_limit(
  p_partition_key smallint,
  p_execution_ids uuid[],
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
  v_row record;
begin
  -- Fail them one by one, because each event has its own counts. This is rare.
  for v_row in
    select u.id, e.reclaim_count, e.max_reclaims, e.lone_crash_count
    from unnest(p_execution_ids) u(id)
    cross join lateral (
      select x.reclaim_count, x.max_reclaims, x.lone_crash_count from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = u.id
      offset 0) e
  loop
    continue when not exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = v_row.id
        and case when e.phase = 'active' then true else false end);
    perform ff._end_executions(
      p_partition_key, array[v_row.id], 'failed', 'exceed_reclaims', 'failed', 'expire_lease',
      'interrupted_reclaimed', p_now,
      p_class => 'infra_crash',
      p_category => case when v_row.lone_crash_count >= 3 then 'crashed_alone'
                         else 'reclaim_cap_exceeded' end,
      p_reason => case when v_row.lone_crash_count >= 3
        then format('its worker vanished %s times while it ran alone in its process',
                    v_row.lone_crash_count)
        else format('its workers vanished %s times; the limit is %s reclaims',
                    v_row.reclaim_count + 1, v_row.max_reclaims) end,
      p_detail => jsonb_build_object(
        'category', case when v_row.lone_crash_count >= 3 then 'crashed_alone'
                         else 'reclaim_cap_exceeded' end,
        'reclaims', v_row.reclaim_count));
  end loop;
end;
$$;
