-- List the executions that match a filter, newest first.
--
-- A call reads a bounded number of executions. So a page can be short or empty although more pages
-- follow. The last row has no id. Its next_cursor is where the next page begins; null means that
-- nothing is left.
--
-- A filter that is null matches everything. An execution must have all tags of the filter. In
-- p_tasks, * stands for any text and ? for any character. p_key finds the execution with that
-- idempotency key. p_error is the type of the latest failure, with or without its module. p_is_held
-- finds held executions (ff.hold_execution). held_step is the step at which the worker stopped.
-- p_is_crash_loop finds unfinished executions that two or more workers in a row had leased when
-- they vanished.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_executions;
create function ff.list_executions(
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
  p_cursor             text default null,
  p_limit              integer default 100
)
returns table (
  execution_id        uuid,
  namespace           text,
  lane                text,
  task                text,
  priority            integer,
  public_state        text,
  blocking_reason     text,
  attempt_index       integer,
  total_attempt_count integer,
  retry_count         integer,
  replay_count        integer,
  reclaim_count       integer,
  is_crash_loop       boolean,
  is_held             boolean,
  held_step           text,
  worker_instance_id  text,
  created_at          timestamptz,
  started_at          timestamptz,
  terminal_at         timestamptz,
  delayed_until       timestamptz,
  deadline_at         timestamptz,
  failure_reason      text,
  version             integer,
  progress_percent    smallint,
  progress_message    text,
  next_cursor         text
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
declare
  v_ids     uuid[] := '{}';
  v_next    uuid;
  v_look_at integer;
begin
  perform ff._check_namespace(p_namespace);
  if p_limit is null or p_limit not between 1 and 1000 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'limit', 'problem', 'must be 1 to 1000'));
  end if;
  -- A short scan is usually enough; scan further only if it finds too few.
  foreach v_look_at in array case
    when num_nonnulls(p_tags, p_error, p_is_held, p_is_crash_loop) = 0
      then array[least(2 * p_limit, 500), 2000]
    else array[200, 1300] end
  loop
    select v_ids || f.execution_ids, f.next_id into v_ids, v_next
    from ff._scan_executions(
      p_partition_key, p_namespace, p_states, p_lanes, p_tasks, p_tags, p_created_after,
      p_created_before, p_ended_after, p_ended_before, p_worker_instance_id, p_key, p_parent_id,
      p_error, p_is_held, p_is_crash_loop,
      coalesce(replace(v_next::text, '-', ''), p_cursor), p_limit - cardinality(v_ids),
      v_look_at) f;
    exit when v_next is null or cardinality(v_ids) = p_limit;
  end loop;
  return query
  select e.execution_id, e.namespace, r.lane, r.task, 9000 - e.rank, e.public_state::text,
         e.blocking_reason::text, e.attempt_index, e.total_attempt_count, e.retry_count,
         e.replay_count, e.reclaim_count, e.crash_count >= 2 and e.phase <> 'terminal',
         h.is_held, s.step, e.worker_instance_id, e.created_at, e.started_at, e.terminal_at,
         e.delayed_until, e.deadline_at,
         case when e.attempt_state <> 'pending_replay_attempt' then e.failure_reason end, e.version,
         e.progress_percent, e.progress_message, null::text
  from unnest(v_ids) with ordinality u(id, n)
  cross join lateral (
    select x.* from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = u.id
    offset 0) e
  cross join lateral (
    select y.lane, y.task from ff.route y where y.route_id = e.route_id offset 0) r
  cross join lateral (
    select e.eligibility = 'blocked_by_operator'
           and coalesce(e.attempt_pause_cause = 'held', false) as is_held) h
  left join lateral (
    select v.detail ->> 'step' as step from ff.event v
    where v.partition_key = p_partition_key and v.execution_id = u.id and v.kind = 'held'
      and h.is_held
    order by v.generation desc, v.event_id desc limit 1) s on true
  order by u.n;
  execution_id := null; namespace := null; lane := null; task := null; priority := null;
  public_state := null; blocking_reason := null; attempt_index := null;
  total_attempt_count := null; retry_count := null; replay_count := null; reclaim_count := null;
  is_crash_loop := null; is_held := null; held_step := null; worker_instance_id := null;
  created_at := null; started_at := null;
  terminal_at := null; delayed_until := null; deadline_at := null; failure_reason := null;
  version := null; progress_percent := null; progress_message := null;
  next_cursor := replace(v_next::text, '-', '');
  return next;
end;
$$;
