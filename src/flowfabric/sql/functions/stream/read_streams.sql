-- Read several streams, each from the position of the reader. For each stream, the answer has the
-- state of the stream and then its next chunks.
--
-- A position is the id (ms, seq) of the last frame that the reader has. (0, 0) is the beginning. A
-- row without ms is the state of a stream. Its outcome is `found`, or `not_found` if the execution
-- does not exist. is_ended says that the execution has ended; then no frame follows this answer,
-- unless a limit has shortened it. Frames with an id below (floor_ms, floor_seq) that are not in
-- this answer were removed.
--
-- For each stream, an answer has at most p_limit frames and about 1 MiB. The last chunk can go
-- beyond these limits. A chunk can begin with frames that the reader already has. If p_changed is
-- true, streams without new frames are left out. Streams whose execution has ended or does not
-- exist are always in the answer.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.read_streams;
create function ff.read_streams(
  p_partition_key    smallint,
  p_namespace        text,
  p_execution_ids    uuid[],
  p_after_ms         bigint[],
  p_after_seqs       integer[],
  p_limit            integer default 1000,
  p_with_best_effort boolean default true,
  p_changed          boolean default false
)
returns table (
  item            integer,
  outcome         text,
  is_ended        boolean,
  closed_at       timestamptz,
  close_reason    text,
  last_ms         bigint,
  last_seq        integer,
  floor_ms        bigint,
  floor_seq       integer,
  frame_count     bigint,
  ms              bigint,
  seq             integer,
  mode            text,
  mode_no         bigint,
  attempt_index   integer,
  epoch           bigint,
  appended_at     timestamptz,
  to_ms           bigint,
  to_seq          integer,
  payloads        bytea[],
  kinds           text[],
  encodings       text[],
  correlation_ids text[]
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
  perform ff._check_batch(cardinality(p_execution_ids), array[
    array_upper(p_execution_ids, 1), cardinality(p_after_ms), cardinality(p_after_seqs)]);
  perform ff._check_limit(p_limit);
  if exists (select from unnest(p_after_ms, p_after_seqs) u(ms, seq)
             where u.ms is null or u.seq is null or u.ms < 0 or u.seq < 0) then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'after', 'problem', 'must be the id of a frame, or 0-0 for the beginning'));
  end if;
  return query
  select a.n, a.outcome, a.is_ended, a.closed_at, a.close_reason, a.last_ms, a.last_seq,
         a.floor_ms, a.floor_seq, a.frame_count,
         c.ms, c.seq, c.mode, c.mode_no, c.attempt_index, c.epoch, c.appended_at, c.to_ms,
         c.to_seq, c.payloads, c.kinds, c.encodings, c.correlation_ids
  from (
    -- This is one statement with one snapshot. So if it sees the end of an execution, it sees all
    -- its frames.
    select u.n::integer as n, u.id, u.ms as after_ms, u.seq as after_seq,
           case when e.phase is null then 'not_found' else 'found' end as outcome,
           e.phase = 'terminal' as is_ended, s.closed_at, s.close_reason::text as close_reason,
           s.last_ms, s.last_seq, s.floor_ms, s.floor_seq,
           s.durable_count + s.summary_count + s.best_effort_count as frame_count
    from unnest(p_execution_ids, p_after_ms, p_after_seqs) with ordinality u(id, ms, seq, n)
    left join lateral (
      select x.phase, x.has_stream from ff.execution x
      where x.partition_key = p_partition_key and x.execution_id = u.id
        and case when p_namespace is null then true else x.namespace = p_namespace end
      offset 0) e on true
    left join lateral (
      select y.closed_at, y.close_reason, y.last_ms, y.last_seq, y.floor_ms, y.floor_seq,
             y.durable_count, y.summary_count, y.best_effort_count
      from ff.stream y
      where e.has_stream and y.partition_key = p_partition_key and y.execution_id = u.id
      offset 0) s on true
    where not p_changed or e.phase is null or e.phase = 'terminal'
       or (s.last_ms, s.last_seq) > (u.ms, u.seq)
    offset 0
  ) a
  cross join lateral (
    select null::bigint as ms, null::integer as seq, null::text as mode, null::bigint as mode_no,
           null::integer as attempt_index, null::bigint as epoch, null::timestamptz as appended_at,
           null::bigint as to_ms, null::integer as to_seq, null::bytea[] as payloads,
           null::text[] as kinds, null::text[] as encodings, null::text[] as correlation_ids
    union all
    select k.ms, k.seq, k.mode::text, k.mode_no, k.attempt_index, k.epoch, k.appended_at, k.to_ms,
           k.to_seq, k.payloads, k.kinds, k.encodings, k.correlation_ids
    from (
      select o.ms, o.seq, o.mode, o.mode_no, o.attempt_index, o.epoch, o.appended_at, o.to_ms,
             o.to_seq, o.payloads, o.kinds, o.encodings, o.correlation_ids,
             sum(o.frame_count) over w - o.frame_count as frames_before,
             sum(o.byte_count) over w - o.byte_count as bytes_before
      from (
        select t.ms, t.seq, t.frame_count, t.mode, t.mode_no, t.attempt_index, t.epoch,
               t.appended_at, t.to_ms, t.to_seq, t.byte_count, t.payloads, t.kinds, t.encodings,
               t.correlation_ids
        from ff.stream_chunk t
        where t.partition_key = p_partition_key and t.execution_id = a.id
          -- A chunk has at most 10 000 frames, so the chunk that contains the position begins less
          -- than 10 000 frames before that position.
          and (t.ms, t.seq) > (a.after_ms, a.after_seq - 10000)
          and (t.ms > a.after_ms or t.seq + t.frame_count - 1 > a.after_seq)
          and case when p_with_best_effort then true else t.mode <> 'best_effort' end
        order by t.ms, t.seq
        limit p_limit) o
      window w as (order by o.ms, o.seq)
    ) k
    where (a.last_ms, a.last_seq) > (a.after_ms, a.after_seq)
      and k.frames_before < p_limit and k.bytes_before < 1048576
  ) c
  order by a.n, c.ms nulls first, c.seq;
end;
$$;
