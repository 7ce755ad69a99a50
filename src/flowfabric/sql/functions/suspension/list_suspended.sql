-- List suspended executions, longest suspended first.
--
-- `continuation` is the text that the holder left for people who read this list. p_after_at and
-- p_after_id are the suspended_at and the execution_id of the last row of the previous page.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_suspended;
create function ff.list_suspended(
  p_partition_key smallint,
  p_namespace     text,
  p_after_at      timestamptz default null,
  p_after_id      uuid default null,
  p_limit         integer default 100
)
returns table (
  execution_id uuid,
  suspended_at timestamptz,
  reason_code  text,
  timeout_at   timestamptz,
  on_timeout   text,
  conditions   jsonb,
  continuation text
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  return query
  select s.execution_id, s.suspended_at, s.reason_code, s.timeout_at, s.on_timeout,
         coalesce(w.conditions, '[]'), s.continuation
  from ff.suspension s
  cross join lateral (
    select jsonb_agg(x.condition - 'default' order by x.position) as conditions from ff.step x
    where x.partition_key = p_partition_key and x.execution_id = s.execution_id
      and x.kind = 'wait' and x.taken_as is null and exists (
        select from unnest(s.wait_names, s.wait_occurrences) u(name, occurrence)
        where u.name = x.name and u.occurrence = x.occurrence)
    offset 0) w
  where s.partition_key = p_partition_key and s.closed_at is null
    and (p_after_at is null
         or (s.suspended_at, s.execution_id) > (p_after_at, p_after_id))
    and exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = s.execution_id
        and case when p_namespace is null then true else e.namespace = p_namespace end
      offset 0)
  order by s.suspended_at, s.execution_id
  limit p_limit;
end;
$$;
