-- Explain a suspension: what the execution waits for, when it was suspended, when the suspension
-- times out, and what happens at the timeout. Also tell who has answered, who has not, and how many
-- signals for other waits have arrived.
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
  v_row    ff.suspension;
  v_waits  jsonb;
  v_points uuid[];
  v_names  text[];
begin
  select s.* into v_row from ff.suspension s
  where s.partition_key = p_partition_key and s.execution_id = p_execution_id
    and s.closed_at is null;
  select jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
           'condition', x.condition - 'default', 'has_default', x.condition -> 'default',
           'until_at', x.until_at, 'answered', c.answered, 'unanswered', c.unanswered,
           'approved', c.approved, 'rejected', c.rejected, 'closed', c.closed,
           'names', c.names, 'question', c.question)) order by x.position, x.name)
    into v_waits
  from ff.step x
  cross join lateral (
    select jsonb_agg(l.name order by l.name) filter (where l.is_answered) as answered,
           jsonb_agg(l.name order by l.name)
             filter (where not l.is_answered and not l.is_closed) as unanswered,
           jsonb_agg(l.name order by l.name) filter (where l.decision = 'approved') as approved,
           jsonb_agg(l.name order by l.name) filter (where l.decision = 'rejected') as rejected,
           jsonb_agg(l.name order by l.name)
             filter (where l.is_closed and not l.is_answered) as closed,
           jsonb_object_agg(l.id, l.name) filter (where l.id is not null) as names,
           max(l.question) as question
    from (
      select null::uuid as id, a.name, exists (
          select from ff.signal g
          where g.partition_key = p_partition_key and g.execution_id = p_execution_id
            and g.name = a.name and g.waitpoint_id is null and g.taken_at is null
          offset 0) as is_answered, false as is_closed, null::text as decision,
          null::text as question
      from (select distinct m #>> '{}' as name
            from jsonb_path_query(x.condition, 'strict $.**.signal', silent => true) m) a
      union all
      select w.waitpoint_id, w.key, o.name is not null or w.approval_id is null
          and w.closed_at is null and exists (
          select from ff.signal g
          where g.partition_key = p_partition_key and g.execution_id = p_execution_id
            and g.name = w.key and g.waitpoint_id is null and g.taken_at is null
          offset 0),
        w.closed_at is not null, case when w.approval_id is not null then o.name end, q.question
      from ff.waitpoint w
      left join lateral (
        select g.name from ff.signal g
        where g.partition_key = p_partition_key and g.execution_id = p_execution_id
          and g.waitpoint_id = w.waitpoint_id and g.taken_at is null
        order by g.noticed_at, g.signal_id
        limit 1) o on true
      left join lateral (
        select p.question from ff.approval p
        where p.partition_key = p_partition_key and p.execution_id = p_execution_id
          and p.approval_id = w.approval_id
        offset 0) q on true
      where w.partition_key = p_partition_key and w.execution_id = p_execution_id
        and w.waitpoint_id = any (ff._waitpoints_in(x.condition))) l
    offset 0) c
  where x.partition_key = p_partition_key and x.execution_id = p_execution_id
    and x.kind = 'wait' and x.taken_as is null and exists (
      select from unnest(v_row.wait_names, v_row.wait_occurrences) u(name, occurrence)
      where u.name = x.name and u.occurrence = x.occurrence);
  -- Collect the waitpoints and the names that the waits take. All other signals are for other
  -- waits. Names of an approval are left out: only its tokens can answer it.
  v_points := array(
    select n.id::uuid from jsonb_array_elements(v_waits) w
    cross join lateral jsonb_object_keys(w -> 'names') n(id));
  v_names := array(
    select m #>> '{}' from jsonb_path_query(v_waits, 'strict $.**.signal', silent => true) m
    union all
    select m #>> '{}'
    from jsonb_path_query(v_waits, 'lax $[*] ? (!exists (@.question)).names.*') m);
  timeout_at := v_row.timeout_at;
  evidence := jsonb_strip_nulls(jsonb_build_object(
    'reason', v_row.reason_code, 'since', v_row.suspended_at, 'waits', v_waits,
    'timeout_at', v_row.timeout_at,
    'then', case when v_row.timeout_at is not null then v_row.on_timeout end,
    'runs', (
      select nullif(count(*), 0) from ff.run_wait w
      where w.partition_key = p_partition_key and w.waiter_id = p_execution_id
        and w.ended_at is null),
    'other_signals', (
      select nullif(count(*), 0) from (
        select from ff.signal g
        where g.partition_key = p_partition_key and g.execution_id = p_execution_id
          and g.taken_at is null and g.category is distinct from 'approval'
          and case when g.waitpoint_id is null then g.name <> all (v_names)
                   else g.waitpoint_id <> all (v_points) end
        limit 10001) o)));
end;
$$;
