-- Record completed steps of handlers, so that a later run does not repeat them. Returns a row for
-- every item.
--
-- A step is identified by its name and its occurrence: the number of earlier steps with that name.
-- The first writer wins, and a later writer gets the stored value. A call can record several steps
-- of one execution, all with the same fence.
--
-- The kind `failure` is for a step that failed without ending its handler; its value describes the
-- failure. The value of a step of kind `now` is the time at which the database recorded the step.
-- The value of a step of kind `sleep` is the time at which the sleep is over.
--
-- If a code version is given, the execution moves to the route with that version. After that, only
-- workers that serve the version claim the execution. If that route is not registered, the outcome
-- is `unknown_route`; the caller must register the route first.
--
-- Moves:    only if the caller is late: an overdue execution is settled as by ff.expire_executions
--           (T24, T23, T5, T4, T18); an expired lease is marked as expired (T19)
-- Refuses:  WF001 invalid_input · per item: busy · not_found · not_active · lease_revoked
--           · lease_expired · stale_lease · unknown_route (namespace, lane, task, capabilities)
--           · invalid (field, problem)
-- Locks:    executions in id order, without waiting; if p_wait is true, waits up to 2 s for the
--           only item
-- Repeat:   `exists`, with what the first call stored, if the caller still has the lease
-- Rights:   app
drop function if exists ff.record_steps;
create function ff.record_steps(
  p_partition_key  smallint,
  p_namespace      text,
  p_execution_ids  uuid[],
  p_lease_ids      uuid[],
  p_epochs         bigint[],
  p_attempt_ids    uuid[],
  p_names          text[],
  p_occurrences    integer[],
  p_positions      integer[],
  p_are_sequential boolean[],
  p_kinds          text[],
  p_values         bytea[],
  p_encodings      text[] default null,
  p_delays         interval[] default null,
  p_untils         timestamptz[] default null,
  p_wait           boolean default false,
  p_follows        integer[] default null,
  p_code_versions  text[] default null
)
returns table (
  item          integer,
  outcome       text,
  recorded_at   timestamptz,
  until_at      timestamptz,
  value         bytea,
  encoding      text,
  attempt_index integer,
  detail        jsonb
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now         timestamptz;
  v_at          timestamptz;
  v_until       timestamptz;
  v_fences      integer[];
  v_judged      ff.verdict[];
  v_unknown     ff.verdict[];
  -- These have one value for each item.
  v_words       text[];
  v_details     jsonb[];
  v_attempts    integer[];
  v_nows        timestamptz[];
  v_fields      text[];
  v_problems    text[];
  v_nths        integer[];
  -- These have one value for each step that was inserted.
  v_step        record;
  v_ids         uuid[] := '{}';
  v_names       text[] := '{}';
  v_occurrences integer[] := '{}';
  v_ats         timestamptz[] := '{}';
  v_untils      timestamptz[] := '{}';
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(cardinality(p_execution_ids), array[
    array_upper(p_execution_ids, 1), cardinality(p_lease_ids), cardinality(p_epochs),
    cardinality(p_attempt_ids),
    cardinality(p_names), cardinality(p_occurrences), cardinality(p_positions),
    cardinality(p_are_sequential), cardinality(p_kinds), cardinality(p_values),
    cardinality(p_encodings), cardinality(p_delays), cardinality(p_untils),
    cardinality(p_follows), cardinality(p_code_versions)], p_wait,
    array[
      array_lower(p_execution_ids, 1), array_ndims(p_execution_ids),
      array_lower(p_lease_ids, 1), array_ndims(p_lease_ids),
      array_lower(p_epochs, 1), array_ndims(p_epochs),
      array_lower(p_attempt_ids, 1), array_ndims(p_attempt_ids),
      array_lower(p_names, 1), array_ndims(p_names),
      array_lower(p_occurrences, 1), array_ndims(p_occurrences),
      array_lower(p_positions, 1), array_ndims(p_positions),
      array_lower(p_are_sequential, 1), array_ndims(p_are_sequential),
      array_lower(p_kinds, 1), array_ndims(p_kinds),
      array_lower(p_values, 1), array_ndims(p_values),
      array_lower(p_encodings, 1), array_ndims(p_encodings),
      array_lower(p_delays, 1), array_ndims(p_delays),
      array_lower(p_untils, 1), array_ndims(p_untils),
      array_lower(p_follows, 1), array_ndims(p_follows),
      array_lower(p_code_versions, 1), array_ndims(p_code_versions)]);

  if cardinality(p_execution_ids) = 1 then
    v_fences := array[1];
    v_judged := ff._enforce_leases(
      p_partition_key, p_namespace, null, p_execution_ids, p_lease_ids, p_epochs, p_attempt_ids,
      p_wait);
  else
    -- Judge each execution once, by the fence of its first item. Items with another fence are
    -- `busy`.
    v_fences := array(
      select min(u.n)::integer from unnest(p_execution_ids) with ordinality u(id, n)
      group by u.id order by 1);
    v_judged := ff._enforce_leases(
      p_partition_key, p_namespace, null,
      array(select p_execution_ids[n] from unnest(v_fences) with ordinality f(n, o) order by o),
      array(select p_lease_ids[n] from unnest(v_fences) with ordinality f(n, o) order by o),
      array(select p_epochs[n] from unnest(v_fences) with ordinality f(n, o) order by o),
      array(select p_attempt_ids[n] from unnest(v_fences) with ordinality f(n, o) order by o),
      p_wait);
  end if;
  if p_code_versions is not null then
    v_unknown := ff._judge_versions(
      p_partition_key,
      array(select j.execution_id from unnest(v_judged) j where j.word = 'leased' order by j.item),
      array(select p_code_versions[v_fences[j.item]] from unnest(v_judged) j
            where j.word = 'leased' order by j.item));
    if cardinality(v_unknown) > 0 then
      v_judged := array(
        select row(j.item, j.execution_id, coalesce(k.word, j.word), j.until_at, j.attempt_index,
                   coalesce(k.detail, j.detail))::ff.verdict
        from unnest(v_judged) j
        left join unnest(v_unknown) k on j.word = 'leased' and k.execution_id = j.execution_id);
    end if;
  end if;
  v_now := ff.now();

  -- Most calls have one new step. The general statement below would take twice as long for it. Look
  -- the step up first, because Citus reports a row as inserted even if `on conflict` skipped it.
  if cardinality(p_execution_ids) = 1 and v_judged[1].word = 'leased' and ff._step_problem(
       p_names[1], p_occurrences[1], p_positions[1], p_are_sequential[1], p_kinds[1], p_values[1],
       p_encodings[1], p_delays[1], p_untils[1], p_follows[1]) is null
     and not exists (
       select from ff.step s
       where s.partition_key = p_partition_key and s.execution_id = p_execution_ids[1]
         and s.name = p_names[1] and s.occurrence = p_occurrences[1]) then
    insert into ff.step (
      partition_key, execution_id, name, occurrence, position, is_sequential, kind, attempt_index,
      epoch, recorded_at, until_at, encoding, value, follows)
    select p_partition_key, e.execution_id, p_names[1], p_occurrences[1], p_positions[1],
           p_are_sequential[1], p_kinds[1]::ff.step_kind, e.attempt_index, e.epoch,
           greatest(v_now, e.transitioned_at),
           coalesce(p_untils[1], greatest(v_now, e.transitioned_at) + p_delays[1]),
           p_encodings[1], p_values[1], p_follows[1]
    from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_execution_ids[1]
    on conflict do nothing
    returning recorded_at, until_at into v_at, v_until;
    if found then
      if p_code_versions[1] is not null then
        perform ff._move_to_versions(p_partition_key, p_execution_ids, p_code_versions);
      end if;
      return query select 1, 'recorded', v_at, v_until, null::bytea, null::text,
                          v_judged[1].attempt_index, null::jsonb;
      return;
    end if;
  end if;

  select array_agg(i.word order by i.n), array_agg(i.detail order by i.n),
         array_agg(i.attempt_index order by i.n), array_agg(i.now order by i.n),
         array_agg(i.words[1] order by i.n), array_agg(i.words[2] order by i.n),
         array_agg(i.nth order by i.n)
    into v_words, v_details, v_attempts, v_nows, v_fields, v_problems, v_nths
  from (
    select a.n, a.word, a.detail, a.attempt_index, p.words,
           greatest(v_now, e.transitioned_at) as now,
           row_number() over (partition by a.id, a.name, a.occurrence,
                                           a.word = 'leased' and p.words is null
                              order by a.n)::integer as nth
    from (
      select u.id, u.name, u.occurrence, u.position, u.sequential, u.kind, u.value, u.encoding,
             u.delay, u.until_at, u.follows, u.n, j.detail, j.attempt_index,
             case when j.word not in ('busy', 'not_found')
                   and (u.lease_id is distinct from p_lease_ids[v_fences[j.item]]
                        or u.epoch is distinct from p_epochs[v_fences[j.item]]
                        or u.attempt_id is distinct from p_attempt_ids[v_fences[j.item]])
                    then 'busy'
                  else j.word end as word
      from unnest(v_judged) j
      join unnest(p_execution_ids, p_lease_ids, p_epochs, p_attempt_ids, p_names, p_occurrences,
                  p_positions, p_are_sequential, p_kinds, p_values, p_encodings, p_delays, p_untils,
                  p_follows)
        with ordinality u(id, lease_id, epoch, attempt_id, name, occurrence, position, sequential,
                          kind, value, encoding, delay, until_at, follows, n)
        on u.id is not distinct from p_execution_ids[v_fences[j.item]]
      offset 0
    ) a
    left join lateral (
      select x.transitioned_at from ff.execution x
      where a.word = 'leased' and x.partition_key = p_partition_key and x.execution_id = a.id
      offset 0) e on true
    cross join lateral (
      select case when a.word = 'leased' then ff._step_problem(
          a.name, a.occurrence, a.position, a.sequential, a.kind, a.value, a.encoding, a.delay,
          a.until_at, a.follows)
        end as words) p
  ) i;

  for v_step in
    insert into ff.step (
      partition_key, execution_id, name, occurrence, position, is_sequential, kind, attempt_index,
      epoch, recorded_at, until_at, encoding, value, follows)
    select p_partition_key, u.id, u.name, u.occurrence, u.position, u.sequential,
           u.kind::ff.step_kind, v_attempts[u.n], u.epoch, v_nows[u.n],
           coalesce(u.until_at, v_nows[u.n] + u.delay), u.encoding, u.value, u.follows
    from unnest(p_execution_ids, p_epochs, p_names, p_occurrences, p_positions, p_are_sequential,
                p_kinds, p_values, p_encodings, p_delays, p_untils, p_follows)
      with ordinality u(id, epoch, name, occurrence, position, sequential, kind, value, encoding,
                        delay, until_at, follows, n)
    where v_words[u.n] = 'leased' and v_fields[u.n] is null and v_nths[u.n] = 1
    on conflict do nothing
    returning execution_id, name, occurrence, recorded_at, until_at
  loop
    v_ids := v_ids || v_step.execution_id;
    v_names := v_names || v_step.name;
    v_occurrences := v_occurrences || v_step.occurrence;
    v_ats := v_ats || v_step.recorded_at;
    v_untils := array_append(v_untils, v_step.until_at);
  end loop;

  -- A step that was not inserted existed before, or an earlier item of this call has inserted it.
  return query
  select u.n::integer,
         case when v_fields[u.n] is not null then 'invalid'
              when v_words[u.n] <> 'leased' then v_words[u.n]
              when v_nths[u.n] = 1 and s.name is not null then 'recorded'
              else 'exists' end,
         coalesce(s.recorded_at, o.recorded_at),
         coalesce(s.until_at, o.until_at),
         case when v_nths[u.n] > 1 or s.name is null then coalesce(o.value, f.value) end,
         case when v_nths[u.n] > 1 or s.name is null then coalesce(o.encoding, f.encoding) end,
         case when v_words[u.n] = 'leased' and v_fields[u.n] is null
           then coalesce(o.attempt_index, v_attempts[u.n]) end,
         case when v_fields[u.n] is not null
                then jsonb_build_object('field', v_fields[u.n], 'problem', v_problems[u.n])
              when v_words[u.n] <> 'busy' then v_details[u.n] end
  from unnest(p_execution_ids, p_names, p_occurrences) with ordinality u(id, name, occurrence, n)
  left join unnest(v_ids, v_names, v_occurrences, v_ats, v_untils)
      s(id, name, occurrence, recorded_at, until_at)
    on s.id = u.id and s.name = u.name and s.occurrence = u.occurrence
    and v_words[u.n] = 'leased' and v_fields[u.n] is null
  left join unnest(p_execution_ids, p_names, p_occurrences, p_values, p_encodings)
      with ordinality f(id, name, occurrence, value, encoding, n)
    on f.id = u.id and f.name = u.name and f.occurrence = u.occurrence
    and v_nths[f.n] = 1 and v_words[f.n] = 'leased' and v_fields[f.n] is null
    and v_nths[u.n] > 1 and s.name is not null and v_fields[u.n] is null
  left join lateral (
    select x.recorded_at, x.until_at, x.value, x.encoding, x.attempt_index
    from ff.step x
    where v_words[u.n] = 'leased' and v_fields[u.n] is null and s.name is null
      and x.partition_key = p_partition_key and x.execution_id = u.id and x.name = u.name
      and x.occurrence = u.occurrence
    offset 0) o on true
  order by u.n;
  if p_code_versions is not null then
    perform ff._move_to_versions(
      p_partition_key, array_agg(j.execution_id), array_agg(p_code_versions[v_fences[j.item]]))
    from unnest(v_judged) j
    where j.word = 'leased' and p_code_versions[v_fences[j.item]] is not null;
  end if;
end;
$$;
