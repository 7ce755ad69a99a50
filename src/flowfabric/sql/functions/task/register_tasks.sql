-- Register tasks of an app: their versions, the JSON Schemas of their arguments and results, their
-- limits, and their signals. Workers call this when they start. Submitters call it before their
-- first submit of a limited task.
--
-- Item n of each array describes p_tasks[n]. An item of p_arguments or p_results is a JSON Schema.
-- If it is null, the stored schema stays.
--
-- An item of p_limits is a list of {"kind": "quota" or "budget", "name", "is_keyed", "argument"}.
-- `argument` names the argument whose value is the key. It is null if the key is computed, or if
-- there is no key. A submit of the task must name every limit, with its key. A null item means no
-- limits.
--
-- An item of p_signals is an object that maps the name of a signal to the JSON Schema of its value.
-- A null schema allows any value. The task takes only the signals in the object. If the item is
-- null, the task takes every signal.
--
-- The call returns an outcome for each task. If a higher version of the app than p_version has
-- registered the task, the stored task stays as it is, and the outcome is `newer`. Otherwise the
-- call stores the task, and the outcome is `registered` (the task is new), `changed` or
-- `unchanged`.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden
-- Locks:    for each task with limits, an advisory lock that makes ff.register_routes wait. Then,
--           in order of task name, the row of each task and the routes that change with it. The
--           call waits up to 2 s for each lock
-- Repeat:   `unchanged`, or `newer` again
-- Rights:   app
drop function if exists ff.register_tasks;
create function ff.register_tasks(
  p_namespace text,
  p_version   integer[],
  p_tasks     text[],
  p_versions  text[] default null,
  p_arguments jsonb[] default null,
  p_results   jsonb[] default null,
  p_limits    jsonb[] default null,
  p_signals   jsonb[] default null
)
returns table (task text, outcome text)
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
  v_item    record;
  v_limits  jsonb;
  v_signals jsonb;
  v_signal  record;
begin
  perform ff._check_namespace(p_namespace);
  if p_namespace is null or p_namespace = '' or octet_length(p_namespace) > 256
     or p_namespace ~ E'[\x01-\x20\x7f]' then
    v_field := 'namespace';
    v_problem := 'must be 1 to 256 bytes without whitespace or control characters';
  elsif ff._app_version_problem(p_version) is not null then
    v_field := 'version'; v_problem := ff._app_version_problem(p_version);
  elsif coalesce(cardinality(p_tasks) > 10000, true) then
    v_field := 'tasks'; v_problem := 'must be at most 10000';
  elsif cardinality(p_tasks) <> any (array[
          cardinality(p_versions), cardinality(p_arguments), cardinality(p_results),
          cardinality(p_limits), cardinality(p_signals)]) then
    v_field := 'tasks'; v_problem := 'arrays of one call must have the same length';
  else
    select w.words[1], w.words[2], u.task into v_field, v_problem, v_which
    from unnest(p_tasks, p_versions, p_arguments, p_results, p_limits, p_signals)
      with ordinality u(task, version, arguments, result, limits, signals, n)
    cross join lateral (
      select case
          when u.task is null or u.task = '' or octet_length(u.task) > 256
            or u.task ~ E'[\x01-\x20\x7f]'
            then array['tasks', 'must each be 1 to 256 bytes without whitespace or control characters']
          when u.version = '' or octet_length(u.version) > 256
            then array['versions', 'must be 1 to 256 bytes']
          when octet_length(u.arguments::text) > 262144
            then array['arguments', 'must be at most 256 KiB']
          when octet_length(u.result::text) > 262144
            then array['results', 'must be at most 256 KiB']
          when jsonb_typeof(u.signals) <> 'object' or octet_length(u.signals::text) > 262144
            or exists (
              select from jsonb_each(case when jsonb_typeof(u.signals) = 'object' then u.signals end)
                d(name, document)
              where ff._signal_name_problem(d.name) is not null
                or jsonb_typeof(d.document) not in ('object', 'null'))
            then array['signals', 'must map names to JSON Schemas or null, in at most 256 KiB']
          else ff._limits_problem(u.limits)
        end as words) w
    where w.words is not null
    order by u.n
    limit 1;
  end if;
  if v_field is null then
    select 'tasks', 'must be different', u.task into v_field, v_problem, v_which
    from unnest(p_tasks) u(task)
    group by u.task
    having count(*) > 1
    limit 1;
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_strip_nulls(jsonb_build_object(
      'field', v_field, 'problem', v_problem, 'task', v_which)));
  end if;

  -- Lock the limits against ff.register_routes. Without the lock, a new route and a change of the
  -- limits at the same time might not see each other.
  perform pg_advisory_xact_lock(u.number)
  from (select distinct ff._hash_limits(p_namespace, x.task) as number
        from unnest(p_tasks, p_limits) x(task, limits)
        where x.limits <> '[]'
        order by 1 offset 0) u;
  -- Write in the order of the key. Workers that start together then wait for each other here, and
  -- do not deadlock.
  for v_item in
    select u.task, u.version, u.arguments, u.result, u.limits, u.signals, u.n
    from unnest(p_tasks, p_versions, p_arguments, p_results, p_limits, p_signals)
      with ordinality u(task, version, arguments, result, limits, signals, n)
    order by u.task collate "C"
  loop
    task := v_item.task;
    v_limits := coalesce(v_item.limits, '[]');
    v_signals := null;
    for v_signal in
      select d.name, d.document from jsonb_each(v_item.signals) d(name, document)
    loop
      v_signals := coalesce(v_signals, '{}') || jsonb_build_object(
        v_signal.name, case when jsonb_typeof(v_signal.document) = 'object'
                         then ff._store_schema(v_signal.document) end);
    end loop;
    v_now := ff.now();
    insert into ff.task as t (
      namespace, task, app_version, version, arguments, result, limits, signals, registered_at,
      changed_at)
    values (p_namespace, v_item.task, p_version, v_item.version, v_item.arguments, v_item.result,
            v_limits, v_signals, v_now, v_now)
    on conflict (namespace, task) do update set
      app_version = excluded.app_version, version = excluded.version,
      arguments = coalesce(excluded.arguments, t.arguments),
      result = coalesce(excluded.result, t.result), limits = excluded.limits,
      signals = excluded.signals,
      changed_at = greatest(excluded.changed_at, t.changed_at)
    where ff._comparable_version(t.app_version) <= ff._comparable_version(excluded.app_version)
      and (t.app_version, t.version, t.arguments, t.result, t.limits, t.signals)
          is distinct from (excluded.app_version, excluded.version,
                            coalesce(excluded.arguments, t.arguments),
                            coalesce(excluded.result, t.result), excluded.limits, excluded.signals)
    -- xmax is 0 only for a new row.
    returning case when t.xmax = 0 then 'registered' else 'changed' end into outcome;
    if not found then
      select case when ff._comparable_version(t.app_version) > ff._comparable_version(p_version)
               then 'newer' else 'unchanged' end
        into outcome
      from ff.task t where t.namespace = p_namespace and t.task = v_item.task;
    end if;
    if outcome <> 'newer' then
      update ff.route r set is_limited = v_limits <> '[]'
      where r.task = v_item.task and r.namespace = p_namespace and r.code_version is null
        and r.is_limited <> (v_limits <> '[]');
    end if;
    return next;
  end loop;
end;
$$;
