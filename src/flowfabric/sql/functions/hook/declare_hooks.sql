-- Declare the hooks of tasks. A hook is a task that is submitted when an execution ends. Workers
-- and submitters call this.
--
-- Item n of each array describes one hook. When an execution of the task p_tasks[n] ends, the task
-- p_names[n] is submitted, with the route, the priority and the options of item n. p_kinds[n] says
-- for which outcomes: `success`, `cancel`, `failure` (any outcome other than success and
-- cancelled), or `end` (every outcome).
--
-- p_known lists the tasks that the caller knows. If a task in p_known has an earlier hook that is
-- not in this call, that hook is removed. The call returns the removed hooks.
--
-- A call does not change a hook that a newer version of the app has declared or removed. Among
-- calls of one version, the last call decides. The end of an execution submits the hooks that are
-- in force at that moment, even if they were declared after the execution was submitted. A task
-- has at most 20 hooks, counting the hooks of all versions.
--
-- The payload of a hook is a JSON object: execution_id, task, outcome, ended_at, attempts,
-- replay_count, cancelled_by, reason, error (class, category, reason, and detail in base64),
-- arguments and result. Unknown facts are left out. If arguments or result are not valid JSON, they
-- are base64 text, and arguments_encoding or result_encoding is added.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    the rows of the declared hooks, then of the removed hooks, waiting up to 2 s for each
-- Repeat:   nothing changes, and `removed` is empty
-- Rights:   app
drop function if exists ff.declare_hooks;
create function ff.declare_hooks(
  p_namespace  text,
  p_version    integer[],
  p_known      text[],
  p_tasks      text[] default '{}',
  p_names      text[] default '{}',
  p_kinds      text[] default '{}',
  p_route_ids  bigint[] default '{}',
  p_priorities integer[] default null,
  p_options    jsonb[] default null
)
returns table (removed text[])
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_field   text;
  v_problem text;
  v_which   text;
begin
  perform ff._check_namespace(p_namespace);
  if p_namespace is null or p_namespace = '' or octet_length(p_namespace) > 256
     or p_namespace ~ E'[\x01-\x20\x7f]' then
    v_field := 'namespace';
    v_problem := 'must be 1 to 256 bytes without whitespace or control characters';
  elsif ff._app_version_problem(p_version) is not null then
    v_field := 'version'; v_problem := ff._app_version_problem(p_version);
  elsif coalesce(cardinality(p_known) > 10000, true) then
    v_field := 'known'; v_problem := 'must be at most 10000';
  elsif exists (
      select from unnest(p_known) k(name)
      where k.name is null or k.name = '' or octet_length(k.name) > 256
        or k.name ~ E'[\x01-\x20\x7f]') then
    v_field := 'known';
    v_problem := 'must each be 1 to 256 bytes without whitespace or control characters';
  elsif coalesce(cardinality(p_tasks) > 100000, true) then
    v_field := 'tasks'; v_problem := 'must be at most 100000';
  elsif cardinality(p_tasks) <> any (array[
          coalesce(cardinality(p_names), -1), coalesce(cardinality(p_kinds), -1),
          coalesce(cardinality(p_route_ids), -1), cardinality(p_priorities),
          cardinality(p_options)]) then
    v_field := 'tasks'; v_problem := 'arrays of one call must have the same length';
  else
    select w.words[1], w.words[2], u.name into v_field, v_problem, v_which
    from unnest(p_tasks, p_names, p_kinds, p_route_ids, p_priorities, p_options)
      with ordinality u(task, name, kind, route_id, priority, options, n)
    cross join lateral (
      select case
          when u.task is null or u.task <> all (p_known)
            then array['task', 'must be one of the known tasks']
          when u.kind is null or u.kind not in ('success', 'failure', 'cancel', 'end')
            then array['kind', 'must be success, failure, cancel or end']
          when not exists (select from ff.route r
                           where r.route_id = u.route_id and r.namespace = p_namespace
                             and r.task = u.name and r.code_version is null
                           offset 0)
            then array['route_id', 'must be a route of the hook registered in this namespace, '
                                   'without a code version']
          when u.name = any (p_tasks)
            then array['name', 'must be another task: a hook has no hooks']
          when u.options ?| array['key', 'parent_id', 'with_parent', 'delayed_until', 'deadline_at',
                                  'creator', 'trace_context']
            then array['options', 'a hook has no key, parent, time, creator or trace of its own']
          when jsonb_typeof(u.options -> 'tags') <> 'object'
            then array['tags', 'must be an object whose values are text']
          when ff._options_problem(u.options) is not null then ff._options_problem(u.options)
        end as words) w
    where w.words is not null
    order by u.n
    limit 1;
  end if;
  if v_field is null then
    select 'name', 'must be different for each hook of a task', u.name
      into v_field, v_problem, v_which
    from unnest(p_tasks, p_names) u(task, name)
    group by u.task, u.name
    having count(*) > 1
    limit 1;
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_strip_nulls(jsonb_build_object(
      'field', v_field, 'problem', v_problem, 'hook', v_which)));
  end if;

  v_now := ff.now();
  -- Write in the order of the key. Workers that start together then wait for each other here, and
  -- do not deadlock.
  insert into ff.hook as h (
    namespace, task, name, kind, version, route_id, priority, options, declared_at)
  select p_namespace, u.task, u.name, u.kind::ff.hook_kind, p_version, u.route_id,
         coalesce(u.priority, 0), u.options, v_now
  from unnest(p_tasks, p_names, p_kinds, p_route_ids, p_priorities, p_options)
    u(task, name, kind, route_id, priority, options)
  order by u.task, u.name
  on conflict (namespace, task, name) do update set
    kind = excluded.kind, version = excluded.version, route_id = excluded.route_id,
    priority = excluded.priority, options = excluded.options,
    declared_at = case when h.removed_at is null and h.kind = excluded.kind then h.declared_at
                       else excluded.declared_at end,
    removed_at = null
  where ff._comparable_version(h.version) <= ff._comparable_version(excluded.version)
    and (h.removed_at is not null
         or (h.kind, h.version, h.route_id, h.priority, h.options)
            is distinct from (excluded.kind, excluded.version, excluded.route_id,
                              excluded.priority, excluded.options));

  with gone as (
    update ff.hook h set removed_at = v_now, version = p_version
    where h.namespace = p_namespace and h.task = any (p_known) and h.removed_at is null
      and ff._comparable_version(h.version) <= ff._comparable_version(p_version)
      and not exists (
        select from unnest(p_tasks, p_names) u(task, name)
        where u.task = h.task and u.name = h.name
        offset 0)
    returning h.name
  )
  select array(select distinct g.name collate "C" from gone g order by 1) into removed;

  -- Hooks of newer versions stay in force and count towards the limit.
  select h.task into v_which from ff.hook h
  where h.namespace = p_namespace and h.task = any (p_tasks) and h.removed_at is null
  group by h.task
  having count(*) > 20
  limit 1;
  if found then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'tasks', 'problem', 'a task has at most 20 hooks, including the hooks of its app',
      'task', v_which));
  end if;
  return next;
end;
$$;
