-- Deliver signals to executions, by name or by the token of a waitpoint. Each signal is stored,
-- and is taken at most once. Returns a row for every item.
--
-- A signal that was sent by name is kept until a wait takes it. A wait can take it if the wait asks
-- for the name, or for an open waitpoint whose key is the name. A token is the whole address of a
-- waitpoint: it contains the execution id and the partition. Every wrong token gets the answer
-- invalid_token. No answer reveals anything about the execution before the token is verified. The
-- source of a signal by token is always `token`.
--
-- The sender makes the id of a signal. A second signal with the same id, or with the same name and
-- dedup key, is a duplicate. An approver answers once: the same answer again is a duplicate, a
-- different answer is refused. A signal reaches the waitpoint of an approval only by token, never
-- by name.
--
-- If a suspended execution can continue now, it is woken. A sender never waits for the row of an
-- execution. If the row is locked, or if p_is_transactional says that the call is part of the
-- caller's transaction, the signal is only stored. ff.notice_signals then wakes the execution after
-- the commit. `effect` says what happened: woken · buffered (kept for a wait) · stored (not noticed
-- yet).
--
-- If the wait, the waitpoint or the task has declared the type of the value, p_schema_ids must name
-- the schema with which the sender has checked the value. Otherwise the answer is schema_required,
-- with the schema, and nothing is stored. The type of a wait applies only to the signals that the
-- wait still needs, not to later signals.
--
-- The answer is `busy` if another open transaction uses the same dedup key. It is also `busy` if an
-- earlier item of the call has the same execution and name, and p_schema_ids does not name the
-- schema that an open wait expects. In that case the wait may take the earlier item, and this item
-- may be for a later wait. Repeat a busy item alone, with p_wait true.
--
-- Moves:    suspended -> runnable eligible or delayed (T18)
-- Refuses:  WF001 invalid_input · per item: busy · duplicate (signal_id) · not_found
--           · not_signalable (the execution has ended) · signal_limit_exceeded (10 000 untaken
--           signals) · payload_too_large (64 KiB) · invalid_token · token_expired
--           · waitpoint_closed · already_answered (decision) · schema_required (schema_id,
--           document) · invalid (field, problem)
-- Locks:    the row of the partition in ff.event_generation, if there is one; executions in id
--           order, skipping locked ones (none if p_is_transactional is true); dedup keys. Waits up
--           to 2 s, but only for a concurrent delivery of the same signal
-- Repeat:   `duplicate`, with the id of the stored signal; `token_expired` if the token has expired
--           since
-- Rights:   app
drop function if exists ff.deliver_signals;
create function ff.deliver_signals(
  p_partition_key     smallint,
  p_namespace         text,
  p_execution_ids     uuid[],
  p_signal_ids        uuid[],
  p_names             text[],
  p_payloads          bytea[],
  p_payload_encodings text[] default null,
  p_dedup_keys        text[] default null,
  p_source_types      text[] default null,
  p_source_identities text[] default null,
  p_categories        text[] default null,
  p_correlation_ids   text[] default null,
  p_is_transactional  boolean default false,
  p_wait              boolean default false,
  p_tokens            text[] default null,
  p_schema_ids        bigint[] default null
)
returns table (item integer, outcome text, signal_id uuid, effect text, detail jsonb)
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
  v_xid        constant xid8 := pg_current_xact_id();
  v_generation constant integer := ff._enter_generation(p_partition_key);
  v_now    timestamptz;
  v_locked uuid[] := '{}';
  v_words  text[];
  v_names  text[];
  -- For each item with a token: the verdict on the token, its waitpoint, and whether the waitpoint
  -- belongs to an approval.
  v_verified   text[];
  v_waitpoints uuid[];
  v_approvals  boolean[];
  -- For each item: the schema that its value must have; null if any value will do.
  v_schemas    bigint[];
  v_row        record;
  -- The items that would exceed the limit of untaken signals.
  v_full   integer[];
  v_busy   integer[];
  v_stored integer[];
  v_woken  uuid[] := '{}';
  v_waking uuid[];
  v_stored_ids     uuid[] := '{}';
  v_stored_signals uuid[] := '{}';
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(cardinality(p_execution_ids), array[
    cardinality(p_signal_ids), cardinality(p_names), cardinality(p_payloads),
    cardinality(p_payload_encodings), cardinality(p_dedup_keys), cardinality(p_source_types),
    cardinality(p_source_identities), cardinality(p_categories),
    cardinality(p_correlation_ids), cardinality(p_tokens), cardinality(p_schema_ids)],
    p_wait,
    array[
      array_lower(p_execution_ids, 1), array_ndims(p_execution_ids),
      array_lower(p_signal_ids, 1), array_ndims(p_signal_ids),
      array_lower(p_names, 1), array_ndims(p_names),
      array_lower(p_payloads, 1), array_ndims(p_payloads),
      array_lower(p_payload_encodings, 1), array_ndims(p_payload_encodings),
      array_lower(p_dedup_keys, 1), array_ndims(p_dedup_keys),
      array_lower(p_source_types, 1), array_ndims(p_source_types),
      array_lower(p_source_identities, 1), array_ndims(p_source_identities),
      array_lower(p_categories, 1), array_ndims(p_categories),
      array_lower(p_correlation_ids, 1), array_ndims(p_correlation_ids),
      array_lower(p_tokens, 1), array_ndims(p_tokens),
      array_lower(p_schema_ids, 1), array_ndims(p_schema_ids)]);
  v_names := p_names;
  v_waitpoints := array_fill(null::uuid, array[cardinality(p_execution_ids)]);
  v_approvals := array_fill(false, array[cardinality(p_execution_ids)]);
  if p_tokens is not null then
    v_verified := ff._verify_tokens(p_partition_key, p_execution_ids, p_tokens);
  end if;
  if not p_is_transactional then
    v_locked := array(
      select l.execution_id
      from (select distinct u.id from unnest(p_execution_ids) u(id) order by u.id offset 0) a
      cross join lateral (
        select e.execution_id from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = a.id
          and case when p_namespace is null then true else e.namespace = p_namespace end
          and case when e.phase <> 'terminal' then true else false end
        for no key update skip locked
      ) l);
  end if;
  v_now := ff.now();

  v_schemas := ff._read_expected_types(
    p_partition_key, p_execution_ids,
    array(select case when u.word is null then u.name end
          from unnest(p_names, v_verified) with ordinality u(name, word, n) order by u.n));
  for v_row in
    select u.n::integer as item, u.name, w.waitpoint_id, w.key, w.is_closed, w.is_approval,
           w.schema_id
    from unnest(p_execution_ids, p_names, v_verified) with ordinality u(id, name, word, n)
    left join lateral (
      select x.waitpoint_id, x.key, x.approval_id is not null as is_approval, x.schema_id,
             x.closed_at is not null or (x.activated_at is null and x.expires_at <= v_now)
               as is_closed
      from ff.waitpoint x
      where x.partition_key = p_partition_key and x.execution_id = u.id
        and x.waitpoint_id = case when u.word ~ '^[0-9a-f]{8}-' then u.word::uuid end
      offset 0) w on true
    where u.word not in ('invalid_token', 'token_expired')
  loop
    v_waitpoints[v_row.item] := v_row.waitpoint_id;
    v_schemas[v_row.item] := v_row.schema_id;
    v_verified[v_row.item] := case
      when v_row.waitpoint_id is null then 'invalid_token'
      when v_row.is_closed then 'waitpoint_closed'
      else 'verified' end;
    v_names[v_row.item] := coalesce(v_row.name, v_row.key);
    v_approvals[v_row.item] := coalesce(v_row.is_approval, false);
  end loop;

  -- Find the refusal of each item that cannot be stored; null for all other items.
  v_words := array(
    select case
        when u.verified in ('invalid_token', 'token_expired') then u.verified
        when u.verified is not null and e.phase is null then 'invalid_token'
        when s.words is not null then 'invalid'
        when e.phase is null then 'not_found'
        -- A repeat gets its first answer, even if the execution has changed since.
        when (e.phase = 'terminal' or u.verified = 'waitpoint_closed'
              or coalesce(u.expected, (t.signals ->> u.name)::bigint) <> coalesce(u.schema_id, -1))
             is true
             and (exists (
                    select from ff.signal g
                    where g.partition_key = p_partition_key and g.execution_id = u.id
                      and g.signal_id = u.signal_id
                    offset 0)
                  or u.dedup_key is not null and exists (
                    select from ff.signal g
                    where g.partition_key = p_partition_key and g.execution_id = u.id
                      and g.name = u.name and g.waitpoint_id is not distinct from u.waitpoint_id
                      and g.dedup_key = u.dedup_key
                    offset 0))
          then null
        when e.phase = 'terminal' then 'not_signalable'
        when u.verified = 'waitpoint_closed' then u.verified
        when octet_length(u.payload) > 65536 then 'payload_too_large'
        when u.verified is null and t.signals is not null and not t.signals ? u.name
          then 'unknown_signal ' || (
            select string_agg(d.name, ', ' order by d.name)
            from jsonb_object_keys(t.signals) d(name))
        -- The wait may take an earlier item of this call. Then this item is for a later wait.
        when u.verified is null and u.expected <> coalesce(u.schema_id, -1) and exists (
               select from unnest(p_execution_ids[:u.n - 1], p_names[:u.n - 1],
                                  v_verified[:u.n - 1]) f(id, name, verified)
               where f.id = u.id and f.name = u.name and f.verified is null
               offset 0)
          then 'busy'
        when coalesce(u.expected, (t.signals ->> u.name)::bigint) <> coalesce(u.schema_id, -1)
          then 'schema_required ' || coalesce(u.expected, (t.signals ->> u.name)::bigint) end
    from unnest(p_execution_ids, p_signal_ids, v_names, p_payloads, p_payload_encodings,
                p_dedup_keys, p_source_types, p_source_identities, p_categories,
                p_correlation_ids, v_verified, v_approvals, v_schemas, p_schema_ids, v_waitpoints)
      with ordinality u(id, signal_id, name, payload, encoding, dedup_key, source_type,
                        source_identity, category, correlation_id, verified, is_approval,
                        expected, schema_id, waitpoint_id, n)
    left join lateral (
      select x.phase, x.route_id from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = u.id
        and case when p_namespace is null then true else x.namespace = p_namespace end
      offset 0) e on true
    left join lateral (
      select k.signals from ff.route r join ff.task k
        on k.namespace = r.namespace and k.task = r.task
      where r.route_id = e.route_id
      offset 0) t on u.verified is null
    cross join lateral (
      select ff._signal_problem(u.id, u.signal_id, u.name, u.encoding, u.dedup_key, u.source_type,
                                u.source_identity, u.category, u.correlation_id,
                                u.is_approval) as words) s
    order by u.n);
  -- The limit counts the signals that no wait has taken.
  v_full := array(
    select unnest(a.items[greatest(10001 - c.number, 1):])
    from (
      select u.id, array_agg(u.n::integer order by u.n) as items
      from unnest(p_execution_ids, v_words) with ordinality u(id, word, n)
      where u.word is null group by u.id
      offset 0) a
    cross join lateral (
      select count(*)::integer as number from (
        select from ff.signal g
        where g.partition_key = p_partition_key and g.execution_id = a.id and g.taken_at is null
        limit 10001) o
      offset 0) c);
  -- Another open transaction may have stored the same dedup key. A batch does not wait for it.
  if p_dedup_keys is not null and not p_wait then
    v_busy := array(
      select u.n::integer
      from unnest(p_execution_ids, v_names, p_dedup_keys, v_words)
        with ordinality u(id, name, dedup_key, word, n)
      where u.dedup_key is not null and u.word is null
        and not pg_try_advisory_xact_lock(
          hashtextextended(concat_ws(' ', p_partition_key, u.id, u.name, u.dedup_key), 18))
      order by u.id, u.name, u.dedup_key);
  end if;

  for v_row in
    insert into ff.signal (
      partition_key, execution_id, signal_id, name, waitpoint_id, category, source_type,
      source_identity, correlation_id, dedup_key, payload, payload_encoding, accepted_at,
      noticed_at, effect, generation, xid)
    select p_partition_key, u.id, u.signal_id, u.name, u.waitpoint_id,
           case when u.is_approval then 'approval' else u.category end,
           case when u.waitpoint_id is not null then 'token'
                else coalesce(u.source_type, 'caller') end, u.source_identity, u.correlation_id, u.dedup_key,
           u.payload, u.encoding, v_now,
           case when u.id = any (v_locked) then v_now end,
           case when u.id = any (v_locked) then 'buffered' end, v_generation, v_xid
    from unnest(p_execution_ids, p_signal_ids, v_names, p_payloads, p_payload_encodings,
                p_dedup_keys, p_source_types, p_source_identities, p_categories,
                p_correlation_ids, v_words, v_waitpoints, v_approvals)
      with ordinality u(id, signal_id, name, payload, encoding, dedup_key, source_type,
                        source_identity, category, correlation_id, word, waitpoint_id,
                        is_approval, n)
    where u.word is null and u.n <> all (v_full)
      and u.n <> all (coalesce(v_busy, '{}'))
    order by u.id, u.waitpoint_id, u.name, u.dedup_key, u.signal_id
    on conflict do nothing
    returning execution_id, signal_id
  loop
    v_stored_ids := v_stored_ids || v_row.execution_id;
    v_stored_signals := v_stored_signals || v_row.signal_id;
  end loop;
  v_stored := array(
    -- Read the first item of each signal, because a signal may occur twice in the call.
    select min(u.n)::integer
    from unnest(p_execution_ids, p_signal_ids) with ordinality u(id, signal_id, n)
    join unnest(v_stored_ids, v_stored_signals) s(id, signal_id)
      on s.id = u.id and s.signal_id = u.signal_id
    group by s.id, s.signal_id
    order by 1);

  insert into ff.signal_inbox (partition_key, execution_id, signal_id, stored_at)
  select p_partition_key, p_execution_ids[n], p_signal_ids[n], v_now
  from unnest(v_stored) n
  where p_execution_ids[n] <> all (v_locked);
  if found then
    perform pg_notify('ff_signal', p_partition_key::text);
  end if;

  if cardinality(v_locked) > 0 then
    perform ff._notice_signals(p_partition_key, v_locked, v_now);
    v_woken := ff._wake_ready_suspensions(p_partition_key, v_locked, v_now);
    if cardinality(v_woken) > 0 then
      v_waking := array(
        select (jsonb_array_elements_text(s.woken_by -> 'signal_ids'))::uuid
        from unnest(v_woken) u(id)
        cross join lateral (
          select x.suspension_id from ff.execution x
          where x.partition_key = p_partition_key and x.execution_id = u.id
          offset 0) e
        cross join lateral (
          select x.woken_by from ff.suspension x
          where x.partition_key = p_partition_key and x.suspension_id = e.suspension_id
          offset 0) s);
      update ff.signal g set effect = 'woken'
      where g.partition_key = p_partition_key and g.execution_id = any (v_woken)
        and g.signal_id = any (v_stored_signals) and g.signal_id = any (v_waking);
    end if;
  end if;

  return query
  select u.n::integer,
         case when u.n = any (v_stored) then 'accepted'
              when u.word like 'unknown_signal %' then 'invalid'
              when u.word like 'schema_required %' then 'schema_required'
              when u.word is not null then u.word
              when u.n = any (v_busy) then 'busy'
              when u.is_approval and o.name <> u.name then 'already_answered'
              when o.signal_id is not null then 'duplicate'
              else 'signal_limit_exceeded' end,
         coalesce(o.signal_id, u.signal_id),
         case when u.n <> all (v_stored) then null
              when u.id <> all (v_locked) then 'stored'
              when u.signal_id = any (v_waking) then 'woken'
              else 'buffered' end,
         case when u.word = 'invalid' then (
                select jsonb_build_object('field', p.words[1], 'problem', p.words[2])
                from (select ff._signal_problem(
                        u.id, u.signal_id, u.name, u.encoding, u.dedup_key, u.source_type,
                        u.source_identity, u.category, u.correlation_id, u.is_approval) as words) p)
              when u.word like 'schema_required %' then (
                select jsonb_build_object('schema_id', d.schema_id, 'document', d.document)
                from ff.signal_schema d
                where d.schema_id = split_part(u.word, ' ', 2)::bigint)
              when u.word like 'unknown_signal %' then jsonb_build_object(
                'field', 'name', 'problem', format(
                  'the task takes no signal %s; it takes %s', u.name, substr(u.word, 16)))
              when u.word = 'payload_too_large' then jsonb_build_object(
                'bytes', octet_length(u.payload), 'limit', 65536)
              when u.n = any (v_stored) then null
              when u.word is null and o.signal_id is null then jsonb_build_object('limit', 10000)
              when u.is_approval and o.name <> u.name then jsonb_build_object('decision', o.name)
              when u.word = 'not_signalable' then jsonb_build_object('reason', 'it has ended') end
  from unnest(p_execution_ids, p_signal_ids, v_names, p_payloads, p_payload_encodings,
              p_dedup_keys, p_source_types, p_source_identities, p_categories,
              p_correlation_ids, v_words, v_waitpoints, v_approvals)
    with ordinality u(id, signal_id, name, payload, encoding, dedup_key, source_type,
                      source_identity, category, correlation_id, word, waitpoint_id, is_approval,
                      n)
  left join lateral (
    -- Also read the signals that were stored before this call.
    select g.signal_id, g.name from ff.signal g
    where u.word is null and u.n <> all (v_stored)
      and g.partition_key = p_partition_key and g.execution_id = u.id
      and g.signal_id = u.signal_id
    union all
    select g.signal_id, g.name from ff.signal g
    where u.word is null and u.n <> all (v_stored) and u.dedup_key is not null
      and g.partition_key = p_partition_key and g.execution_id = u.id and g.name = u.name
      and g.waitpoint_id is not distinct from u.waitpoint_id and g.dedup_key = u.dedup_key
    union all
    select g.signal_id, g.name from ff.signal g
    where u.word is null and u.n <> all (v_stored) and u.is_approval
      and g.partition_key = p_partition_key and g.execution_id = u.id
      and g.waitpoint_id = u.waitpoint_id and g.category = 'approval'
    limit 1) o on true
  order by u.n;
end;
$$;
