-- Count the executions that match a filter, beginning at a cursor. The filter works as in
-- ff.list_executions.
--
-- A call reads a bounded number of executions. next_cursor is where the next call begins; null
-- means that nothing is left. The caller adds up the counts of its calls.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.count_executions;
create function ff.count_executions(
  p_partition_key      smallint,
  p_namespace          text,
  p_states             text[] default null,
  p_lanes              text[] default null,
  p_tasks              text[] default null,
  p_tags               text default null,
  p_created_after      timestamptz default null,
  p_created_before     timestamptz default null,
  p_ended_after        timestamptz default null,
  p_ended_before       timestamptz default null,
  p_worker_instance_id text default null,
  p_key                text default null,
  p_parent_id          uuid default null,
  p_error              text default null,
  p_is_held            boolean default null,
  p_is_crash_loop      boolean default null,
  p_cursor             text default null
)
returns table (counted integer, next_cursor text)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  return query
  select cardinality(f.execution_ids), replace(f.next_id::text, '-', '')
  from ff._scan_executions(
    p_partition_key, p_namespace, p_states, p_lanes, p_tasks, p_tags, p_created_after,
    p_created_before, p_ended_after, p_ended_before, p_worker_instance_id, p_key, p_parent_id,
    p_error, p_is_held, p_is_crash_loop, p_cursor, 10000,
    case when num_nonnulls(p_tags, p_error, p_is_held, p_is_crash_loop) = 0 then 2500
         else 1500 end) f;
end;
$$;
