-- Explain a suspension: what is waited for, since when, until when, what happens then, and how many
-- signals have arrived.
drop function if exists ff._explain_suspension;
create function ff._explain_suspension(
  p_partition_key smallint,
  p_execution_id  uuid,
  out evidence    jsonb,
  out timeout_at  timestamptz
)
returns record
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_row   ff.suspension;
  v_waits jsonb;
begin
  select s.* into v_row from ff.suspension s
  where s.partition_key = p_partition_key and s.execution_id = p_execution_id
    and s.closed_at is null;
  select jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
           'condition', x.condition, 'until_at', x.until_at, 'answered', c.answered,
           'unanswered', c.unanswered)) order by x.position, x.name)
    into v_waits
  from ff.step x
  cross join lateral (
    select jsonb_agg(l.name order by l.name) filter (where l.is_answered) as answered,
           jsonb_agg(l.name order by l.name) filter (where not l.is_answered) as unanswered
    from (
      select a.name, exists (
          select from ff.signal g
          where g.partition_key = p_partition_key and g.execution_id = p_execution_id
            and g.name = a.name and g.waitpoint_id is null and g.taken_at is null
          offset 0) as is_answered
      from (select distinct m #>> '{}' as name
            from jsonb_path_query(x.condition, 'strict $.**.signal', silent => true) m) a
      union all
      select w.key, exists (
          select from ff.signal g
          where g.partition_key = p_partition_key and g.execution_id = p_execution_id
            and g.waitpoint_id = w.waitpoint_id and g.taken_at is null
          offset 0)
      from ff.waitpoint w
      where w.partition_key = p_partition_key and w.execution_id = p_execution_id
        and w.waitpoint_id = any (ff._waitpoints_in(x.condition))) l) c
  where x.partition_key = p_partition_key and x.execution_id = p_execution_id
    and x.kind = 'wait' and x.taken_as is null and exists (
      select from unnest(v_row.wait_names, v_row.wait_occurrences) u(name, occurrence)
      where u.name = x.name and u.occurrence = x.occurrence);
  timeout_at := v_row.timeout_at;
  evidence := jsonb_strip_nulls(jsonb_build_object(
    'reason', v_row.reason_code, 'since', v_row.suspended_at, 'waits', v_waits,
    'timeout_at', v_row.timeout_at,
    'then', case when v_row.timeout_at is not null then v_row.timeout_behavior end,
    'runs', (
      select nullif(count(*), 0) from ff.run_wait w
      where w.partition_key = p_partition_key and w.waiter_id = p_execution_id
        and w.ended_at is null),
    'untaken_signals', (
      select nullif(count(*), 0) from (
        select from ff.signal g
        where g.partition_key = p_partition_key and g.execution_id = p_execution_id
          and g.taken_at is null
        limit 10001) o)));
end;
$$;
