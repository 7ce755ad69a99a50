-- Append frames to the streams of running executions, in chunks. Returns a row for every chunk.
--
-- A chunk consists of frames that one lease appends in one mode. The mode is `durable`, `summary`
-- or `best_effort`. The payload of a summary frame is a JSON merge patch, which is applied to the
-- summary of the execution. Only the newest best-effort frames are kept: about as many as arrive in
-- twice the ttl (p_ttls).
--
-- p_counts says how many frames each chunk has. The arrays of frames contain the frames of the
-- first chunk, then the frames of the second chunk, and so on. Several chunks of one execution are
-- appended in their order.
--
-- The frames of a lease are numbered from 0. p_first_nos is the number of the first frame of each
-- chunk. Frames whose numbers were stored before are skipped, so a call can be repeated. If frames
-- before the chunk were not stored, the outcome is `gap`. A lease must not have two appends at the
-- same time.
--
-- p_positions is the number of journal entries when the frames were sent. p_bases is the number of
-- entries when the run of the handler began. A new run sends some frames of earlier leases again:
-- the frames of the same generation with position p_bases or higher. If the stream has such frames,
-- the first append of the new lease writes a rewind.
--
-- Moves:    only on the first append of a lease, or after the lease was lost: an overdue execution
--           is settled as by ff.expire_executions (T24, T23, T5, T4, T18); an expired lease is
--           marked as expired (T19)
-- Refuses:  WF001 invalid_input · per item: busy · not_found · not_active · lease_revoked
--           · lease_expired · stale_lease · gap (last_no) · payload_too_large (64 KiB a frame)
--           · stream_full (bytes, limit) · invalid (field, problem)
-- Locks:    executions in id order, for the first append of a lease and for a lost lease; then
--           streams in id order; skips locked ones. To settle an execution or to mark a lease, the
--           call may wait up to 2 s for a stream
-- Repeat:   `appended`, if the caller still has the lease; nothing is stored twice
-- Rights:   app
drop function if exists ff.append_frames;
create function ff.append_frames(
  p_partition_key   smallint,
  p_namespace       text,
  p_execution_ids   uuid[],
  p_lease_ids       uuid[],
  p_epochs          bigint[],
  p_attempt_ids     uuid[],
  p_bases           integer[],
  p_positions       integer[],
  p_modes           text[],
  p_first_nos       bigint[],
  p_counts          integer[],
  p_payloads        bytea[],
  p_kinds           text[],
  p_encodings       text[],
  p_correlation_ids text[] default null,
  p_ttls            interval[] default null
)
returns table (
  item            integer,
  outcome         text,
  last_no         bigint,
  last_ms         bigint,
  last_seq        integer,
  frame_count     bigint,
  summary_version bigint,
  detail          jsonb
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
  v_now     timestamptz;
  -- These arrays have one value for each item: the index of its first frame in the arrays of
  -- frames; the number of the chunk within its execution; and, for an item that is not appended,
  -- the refusal.
  v_starts  integer[];
  v_nths    integer[];
  v_words   text[];
  v_details jsonb[];
  -- The first item of each execution.
  v_fences  integer[];
  -- The first items of the executions whose lease has not appended yet.
  v_new     integer[];
  v_judged  ff.verdict[];
  v_locked  uuid[];
  v_row     record;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(
    cardinality(p_execution_ids), array[
      array_upper(p_execution_ids, 1), cardinality(p_lease_ids), cardinality(p_epochs),
      cardinality(p_attempt_ids), cardinality(p_bases), cardinality(p_positions),
      cardinality(p_modes), cardinality(p_first_nos), cardinality(p_counts),
      cardinality(p_ttls)],
    p_firsts => array[
      array_lower(p_execution_ids, 1), array_ndims(p_execution_ids), array_lower(p_lease_ids, 1),
      array_ndims(p_lease_ids), array_lower(p_epochs, 1), array_ndims(p_epochs),
      array_lower(p_attempt_ids, 1), array_ndims(p_attempt_ids), array_lower(p_bases, 1), array_ndims(p_bases), array_lower(p_positions, 1),
      array_ndims(p_positions), array_lower(p_modes, 1), array_ndims(p_modes),
      array_lower(p_first_nos, 1), array_ndims(p_first_nos), array_lower(p_counts, 1),
      array_ndims(p_counts), array_lower(p_ttls, 1), array_ndims(p_ttls),
      array_lower(p_payloads, 1), array_lower(p_kinds, 1), array_lower(p_encodings, 1),
      array_lower(p_correlation_ids, 1)]);
  if exists (select from unnest(p_counts) c(n) where c.n is null or c.n < 1 or c.n > 10000)
     or (select sum(c.n) from unnest(p_counts) c(n)) <> any (array[
           cardinality(p_payloads), cardinality(p_kinds), cardinality(p_encodings),
           cardinality(p_correlation_ids)]) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'counts', 'problem',
      'must be 1 to 10000 each, and their sum the length of the arrays of frames'));
  end if;
  select array_agg(c.start order by c.n), array_agg(c.nth order by c.n),
         array_agg(case when c.problem[1] = 'payload_too_large' then c.problem[1]
                        when c.problem is not null then 'invalid' end order by c.n),
         array_agg(case when c.problem[1] = 'payload_too_large'
                          then jsonb_build_object('limit', 65536)
                        when c.problem is not null then jsonb_build_object(
                          'field', c.problem[1], 'problem', c.problem[2]) end order by c.n)
    into v_starts, v_nths, v_words, v_details
  from (
    select u.n, 1 + (sum(u.size) over (order by u.n) - u.size)::integer as start,
           (row_number() over (partition by u.id order by u.n))::integer as nth,
           case when u.id is null then array['execution_id', 'must not be null']
                when u.mode is null or u.mode not in ('durable', 'summary', 'best_effort')
                  then array['mode', 'must be durable, summary or best_effort']
                when u.first_no is null or u.first_no < 0
                  then array['first_no', 'must be 0 or more']
                when u.base is null or u.base < 0 then array['base', 'must be 0 or more']
                when u.position is null or u.position < u.base
                  then array['position', 'must not be less than base']
                when not ff._is_within(u.ttl, interval '1 microsecond', interval '1 day')
                  then array['ttl', 'must be more than 0 and at most a day'] end as problem
    from unnest(p_execution_ids, p_modes, p_first_nos, p_counts, p_bases, p_positions, p_ttls)
      with ordinality u(id, mode, first_no, size, base, position, ttl, n)) c;
  for v_row in
    select f.item, f.field, f.problem
    from (
      select (select count(*)::integer from unnest(v_starts) s(start) where s.start <= g.n) as item,
             g.words[1] as field, g.words[2] as problem
      from (
        select x.n, case
            when x.payload is null then array['payload', 'must not be null']
            when octet_length(x.payload) > 65536 then array['payload_too_large', '']
            when x.kind is null or octet_length(x.kind) not between 1 and 64
              then array['kind', 'must have 1 to 64 bytes']
            when x.encoding is null or x.encoding not in ('text', 'json', 'bytes')
              then array['encoding', 'must be text, json or bytes']
            when octet_length(x.correlation_id) > 256
              then array['correlation_id', 'must have at most 256 bytes'] end as words
        from unnest(p_payloads, p_kinds, p_encodings, p_correlation_ids)
          with ordinality x(payload, kind, encoding, correlation_id, n)) g
      where g.words is not null) f
  loop
    v_words[v_row.item] := case when v_row.field = 'payload_too_large' then v_row.field
                                else 'invalid' end;
    v_details[v_row.item] := case
      when v_row.field = 'payload_too_large' then jsonb_build_object('limit', 65536)
      else jsonb_build_object('field', v_row.field, 'problem', v_row.problem) end;
  end loop;

  v_fences := array(
    select u.n::integer from unnest(v_nths) with ordinality u(nth, n)
    where u.nth = 1 and p_execution_ids[u.n] is not null order by u.n);
  -- Judge leases that have not appended yet, and lost leases. This happens before any stream is
  -- locked, because the judgement may have to wait for a stream.
  v_new := array(
    select f.n from unnest(v_fences) f(n)
    where not exists (
      select from ff.stream s
      where s.partition_key = p_partition_key and s.execution_id = p_execution_ids[f.n]
        and case when s.lease_id = p_lease_ids[f.n] then true else false end
      offset 0)
    or not exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = p_execution_ids[f.n]
        and case when e.ownership = 'leased' and e.lease_id = p_lease_ids[f.n]
                  and e.epoch = p_epochs[f.n] and e.attempt_id = p_attempt_ids[f.n]
                  and (p_namespace is null or e.namespace = p_namespace)
             then true else false end
      offset 0)
    order by f.n);
  if v_new <> '{}' then
    v_judged := ff._enforce_leases(
      p_partition_key, p_namespace, null,
      array(select p_execution_ids[u.n] from unnest(v_new) with ordinality u(n, o) order by u.o),
      array(select p_lease_ids[u.n] from unnest(v_new) with ordinality u(n, o) order by u.o),
      array(select p_epochs[u.n] from unnest(v_new) with ordinality u(n, o) order by u.o),
      array(select p_attempt_ids[u.n] from unnest(v_new) with ordinality u(n, o) order by u.o),
      false);
    for v_row in select j.item, j.word, j.detail from unnest(v_judged) j where j.word <> 'leased' loop
      v_words[v_new[v_row.item]] := v_row.word;
      v_details[v_new[v_row.item]] := v_row.detail;
    end loop;
    perform ff._open_streams(
      p_partition_key,
      array(select j.execution_id from unnest(v_judged) j
            where j.word = 'leased' and v_words[v_new[j.item]] is null order by j.item),
      array(select p_bases[v_new[j.item]] from unnest(v_judged) j
            where j.word = 'leased' and v_words[v_new[j.item]] is null order by j.item));
  end if;
  v_locked := array(
    select l.execution_id
    from (
      select p_execution_ids[f.n] as id, p_lease_ids[f.n] as lease_id
      from unnest(v_fences) f(n) where v_words[f.n] is null
      order by 1
      offset 0) a
    cross join lateral (
      select s.execution_id from ff.stream s
      where s.partition_key = p_partition_key and s.execution_id = a.id
        and case when s.lease_id = a.lease_id then true else false end
      for no key update skip locked) l);
  v_now := ff.now();
  -- This statement runs after the lock, so it sees every end of a lease that committed before. If a
  -- lease has ended since it was judged, the outcome is `busy`, and the next call gives the exact
  -- outcome.
  for v_row in
    select f.n, u.id, e.lease_id
    from unnest(v_fences) f(n)
    cross join lateral (select p_execution_ids[f.n] as id offset 0) u
    left join lateral (
      select x.lease_id, x.lease_expires_at, x.transitioned_at from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = u.id
        and case when x.ownership = 'leased' then true else false end
      offset 0) e on true
    where u.id = any (v_locked)
      and (e.lease_id = p_lease_ids[f.n]
           and e.lease_expires_at > greatest(v_now, e.transitioned_at)) is not true
  loop
    v_locked := array_remove(v_locked, v_row.id);
    if v_row.lease_id = p_lease_ids[v_row.n] then
      v_words[v_row.n] := 'lease_expired';
    end if;
  end loop;
  -- If the first chunk of an execution is refused, its other chunks get the same refusal. Chunks
  -- with another fence than the first chunk are `busy`.
  for v_row in
    select u.n, v_words[f.n] as word, v_details[f.n] as detail,
           u.lease_id = p_lease_ids[f.n] and u.epoch = p_epochs[f.n]
             and u.attempt_id = p_attempt_ids[f.n] as is_same
    from unnest(v_fences) f(n)
    join unnest(p_execution_ids, p_lease_ids, p_epochs, p_attempt_ids)
      with ordinality u(id, lease_id, epoch, attempt_id, n) on u.id = p_execution_ids[f.n]
    where v_words[u.n] is null and u.id <> all (v_locked)
       or u.n > f.n and not (
            (u.lease_id = p_lease_ids[f.n] and u.epoch = p_epochs[f.n]
             and u.attempt_id = p_attempt_ids[f.n]) is true)
    order by u.n
  loop
    v_words[v_row.n] := case when v_row.is_same then coalesce(v_row.word, 'busy') else 'busy' end;
    v_details[v_row.n] := case when v_row.is_same then v_row.detail end;
  end loop;

  for v_nth in 1 .. (select max(u.n) from unnest(v_nths) u(n)) loop
    return query
    select r.item, r.outcome, r.last_no, r.last_ms, r.last_seq, r.frame_count, r.summary_version,
           r.detail
    from ff._append_chunks(
      p_partition_key,
      array(select u.n::integer from unnest(v_nths) with ordinality u(nth, n)
            where u.nth = v_nth and v_words[u.n] is null order by u.n),
      p_execution_ids, p_positions, p_modes, p_first_nos, p_counts, v_starts, p_payloads, p_kinds,
      p_encodings, p_correlation_ids, p_ttls, v_now) r;
  end loop;
  return query
  select u.n::integer, u.word, null::bigint, null::bigint, null::integer, null::bigint,
         null::bigint, v_details[u.n]
  from unnest(v_words) with ordinality u(word, n)
  where u.word is not null;
end;
$$;
