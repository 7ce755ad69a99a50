-- Declare all schedules of an app. Workers of the app call this. A schedule that is no longer
-- declared is orphaned and does not fire. Returns the schedules that this call orphaned.
--
-- The highest version of an app decides which schedules exist. A call of a lower version changes
-- nothing, and the outcome is `older`. Among workers of one version, the schedules of the worker
-- that started last are in force. A worker that repeats its declaration sets p_generation to the
-- generation that its first call returned. If another worker has declared other schedules since,
-- the repeat changes nothing, and the outcome is `superseded`.
--
-- If an orphaned schedule is declared again, or if the rule of a schedule has changed, the
-- schedule continues at its time in p_next_ats. A paused schedule stays paused.
--
-- p_anchor_ats are the instants from which the intervals in p_everys are counted. The instant of an
-- existing schedule is replaced only if the rule of the schedule has changed. If the item in
-- p_are_anchored is true, a different instant counts as a change of the rule. Arrays whose default
-- is null can be omitted.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    the row of the app, then the rows of its schedules, waiting up to 2 s for each
-- Repeat:   `declared` or `older` again; nothing changes, and `orphaned` is empty. If p_generation
--           was given and the first call changed something, the outcome is `superseded`
-- Rights:   app
drop function if exists ff.declare_schedules;
create function ff.declare_schedules(
  p_namespace         text,
  p_app               text,
  p_version           integer[],
  p_generation        bigint default null,
  p_names             text[] default '{}',
  p_schedule_ids      uuid[] default '{}',
  p_route_ids         bigint[] default '{}',
  p_crons             text[] default null,
  p_everys            interval[] default null,
  p_time_zones        text[] default null,
  p_anchor_ats        timestamptz[] default null,
  p_are_anchored      boolean[] default null,
  p_misfires          text[] default null,
  p_next_ats          timestamptz[] default '{}',
  p_payloads          bytea[] default null,
  p_payload_encodings text[] default null,
  p_priorities        integer[] default null,
  p_options           jsonb[] default null
)
returns table (outcome text, generation bigint, version integer[], orphaned text[])
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     timestamptz;
  v_known   ff.schedule_app;
  v_field   text;
  v_problem text;
  v_which   text;
  v_new     text[];
  v_changed boolean;
  v_gone    text[];
begin
  perform ff._check_namespace(p_namespace);
  if p_namespace is null or p_namespace = '' or octet_length(p_namespace) > 256
     or p_namespace ~ E'[\x01-\x20\x7f]' then
    v_field := 'namespace';
    v_problem := 'must be 1 to 256 bytes without whitespace or control characters';
  elsif p_app is null or p_app = '' or octet_length(p_app) > 256 or p_app ~ E'[\x01-\x20\x7f]' then
    v_field := 'app';
    v_problem := 'must be 1 to 256 bytes without whitespace or control characters';
  elsif ff._app_version_problem(p_version) is not null then
    v_field := 'version'; v_problem := ff._app_version_problem(p_version);
  elsif coalesce(cardinality(p_names) > 10000, true) then
    v_field := 'names'; v_problem := 'must be at most 10000';
  elsif array_lower(p_names, 1) <> 1 or array_ndims(p_names) <> 1 then
    v_field := 'names'; v_problem := 'must have one dimension and count from 1';
  elsif cardinality(p_names) <> any (array[
          coalesce(cardinality(p_schedule_ids), -1), coalesce(cardinality(p_route_ids), -1),
          coalesce(cardinality(p_next_ats), -1), cardinality(p_crons), cardinality(p_everys),
          cardinality(p_time_zones), cardinality(p_anchor_ats), cardinality(p_are_anchored),
          cardinality(p_misfires), cardinality(p_payloads), cardinality(p_payload_encodings),
          cardinality(p_priorities), cardinality(p_options)]) then
    v_field := 'names'; v_problem := 'arrays of one call must have the same length';
  elsif (select count(distinct u.name) < count(u.name) from unnest(p_names) u(name)) then
    v_field := 'names'; v_problem := 'must be different';
  else
    select w.words[1], w.words[2], u.name into v_field, v_problem, v_which
    from unnest(p_names, p_schedule_ids, p_route_ids, p_crons, p_everys, p_time_zones, p_anchor_ats,
                p_misfires, p_next_ats, p_options)
      with ordinality u(name, id, route_id, cron, every, time_zone, anchor_at, misfire, next_at,
                        options, n)
    cross join lateral (
      select case
          when u.name is null or u.name = '' or octet_length(u.name) > 240
            or u.name ~ E'[\x01-\x20\x7f]'
            then array['name', 'must be 1 to 240 bytes without whitespace or control characters']
          when ff._is_nil_id(u.id) then array['schedule_id', 'must be a uuid other than the nil uuid']
          when not exists (select from ff.route r
                           where r.route_id = u.route_id and r.namespace = p_namespace
                             and r.code_version is null
                           offset 0)
            then array['route_id', 'must be a route registered in this namespace']
          when num_nonnulls(u.cron, u.every) <> 1
            then array['cron', 'give either cron or every, not both']
          when u.cron = '' or octet_length(u.cron) > 256
            then array['cron', 'must be 1 to 256 bytes']
          when not ff._is_within(u.every, interval '1 second', interval '36525 days')
            then array[
              'every', 'must be between a second and a hundred years, in days or smaller units']
          when (u.every is null) <> (u.anchor_at is null)
            then array['anchor_at', 'must be given with every, and only with every']
          when u.anchor_at < timestamptz '0001-01-02 00:00:00+00'
            or u.anchor_at >= timestamptz '9999-01-01 00:00:00+00'
            then array['anchor_at', 'must be between the years 1 and 9999']
          when octet_length(u.time_zone) not between 1 and 64
            then array['time_zone', 'must be 1 to 64 bytes']
          when coalesce(u.misfire, 'once') not in ('once', 'skip', 'all')
            then array['misfire', 'must be once, skip or all']
          when u.next_at is null or u.next_at < timestamptz '0001-01-02 00:00:00+00'
            or u.next_at >= timestamptz '9999-01-01 00:00:00+00'
            then array['next_at', 'must be between the years 1 and 9999']
          when u.options ?| array['key', 'parent_id', 'with_parent', 'delayed_until', 'deadline_at']
            then array['options', 'a schedule has no key, parent or time of its own']
        end as words) w
    where w.words is not null
    order by u.n
    limit 1;
  end if;
  if v_field is null then
    select j.detail ->> 'field', j.detail ->> 'problem', p_names[j.item]
      into v_field, v_problem, v_which
    from unnest(ff._judge_submits(p_namespace, p_schedule_ids, p_route_ids, null, p_payloads,
                                  p_payload_encodings, null, p_options)) j
    order by j.item
    limit 1;
  end if;
  if v_field is null then
    select 'tags', 'must be at most 62: each firing adds two', p_names[u.n]
      into v_field, v_problem, v_which
    from unnest(p_options) with ordinality u(o, n)
    where (select count(*) from jsonb_object_keys((u.o ->> 'tags')::jsonb)) > 62
    order by u.n
    limit 1;
  end if;
  if v_field is null then
    -- A schedule id is unique across apps and namespaces.
    select 'schedule_id', 'belongs to another schedule: make a new one', u.name
      into v_field, v_problem, v_which
    from unnest(p_names, p_schedule_ids) u(name, id)
    where exists (
        select from ff.schedule s
        where s.schedule_id = u.id
          and (s.namespace, s.app, s.name) is distinct from (p_namespace, p_app, u.name)
        offset 0)
       or u.id in (
        select x.id from unnest(p_schedule_ids) x(id) group by x.id having count(*) > 1)
    order by u.name
    limit 1;
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_strip_nulls(jsonb_build_object(
      'field', v_field, 'problem', v_problem, 'schedule', v_which)));
  end if;

  insert into ff.schedule_app as a (namespace, app, version)
  values (p_namespace, p_app, p_version)
  -- If two versions are equal (1 and 1.0), keep the later declaration.
  on conflict (namespace, app) do update set version = case
    when ff._comparable_version(excluded.version) >= ff._comparable_version(a.version)
    then excluded.version else a.version end
  returning a.namespace, a.app, a.version, a.generation into v_known;
  v_now := ff.now();
  if v_known.version <> p_version then
    return query select 'older', v_known.generation, v_known.version, '{}'::text[];
    return;
  end if;
  if v_known.generation > p_generation then
    return query select 'superseded', v_known.generation, v_known.version, '{}'::text[];
    return;
  end if;

  -- Find schedules whose rule differs from the stored one. Only this function changes rules.
  v_new := array(
    select u.name
    from unnest(p_names, p_crons, p_everys, p_time_zones, p_anchor_ats, p_are_anchored)
      u(name, cron, every, time_zone, anchor_at, is_anchored)
    join ff.schedule s on s.namespace = p_namespace and s.app = p_app and s.name = u.name
    where (s.cron, s.every, s.time_zone)
          is distinct from (u.cron, u.every, coalesce(u.time_zone, 'UTC'))
       or (u.is_anchored and u.anchor_at is distinct from s.anchor_at));

  with declared as (
    insert into ff.schedule as s (
      namespace, app, name, schedule_id, route_id, cron, every, time_zone, anchor_at, is_anchored,
      misfire, payload_encoding, payload, priority, options, next_at, declared_at)
    select p_namespace, p_app, u.name, u.id, u.route_id, u.cron, u.every,
           coalesce(u.time_zone, 'UTC'), u.anchor_at, coalesce(u.is_anchored, false),
           coalesce(u.misfire, 'once')::ff.misfire, u.encoding, u.payload, coalesce(u.priority, 0),
           u.options, u.next_at, v_now
    from unnest(p_names, p_schedule_ids, p_route_ids, p_crons, p_everys, p_time_zones, p_anchor_ats,
                p_are_anchored, p_misfires, p_next_ats, p_payloads, p_payload_encodings,
                p_priorities, p_options)
      u(name, id, route_id, cron, every, time_zone, anchor_at, is_anchored, misfire, next_at,
        payload, encoding, priority, options)
    order by u.name
    on conflict (namespace, app, name) do update set
      route_id = excluded.route_id, cron = excluded.cron, every = excluded.every,
      time_zone = excluded.time_zone,
      anchor_at = case when s.name = any (v_new) then excluded.anchor_at else s.anchor_at end,
      is_anchored = excluded.is_anchored,
      rule_no = s.rule_no + case when s.name = any (v_new) then 1 else 0 end,
      misfire = excluded.misfire, payload_encoding = excluded.payload_encoding,
      payload = excluded.payload, priority = excluded.priority, options = excluded.options,
      orphaned_at = null,
      next_at = case when s.is_paused then null
                     when s.orphaned_at is not null or s.name = any (v_new) then excluded.next_at
                     else s.next_at end
    where s.orphaned_at is not null or s.name = any (v_new)
       or (s.route_id, s.is_anchored, s.misfire, s.payload_encoding, s.payload, s.priority,
           s.options)
          is distinct from (
            excluded.route_id, excluded.is_anchored, excluded.misfire, excluded.payload_encoding,
            excluded.payload, excluded.priority, excluded.options)
    returning s.name
  ),
  orphaned as (
    update ff.schedule s set orphaned_at = v_now, next_at = null
    where s.namespace = p_namespace and s.app = p_app and s.orphaned_at is null
      and s.name <> all (p_names)
    returning s.name
  )
  select exists (select from declared) or exists (select from orphaned),
         array(select o.name from orphaned o order by o.name)
  into v_changed, v_gone;
  if v_changed then
    update ff.schedule_app a set generation = a.generation + 1
    where a.namespace = p_namespace and a.app = p_app
    returning a.generation into v_known.generation;
  end if;
  return query select 'declared', v_known.generation, v_known.version, v_gone;
end;
$$;
