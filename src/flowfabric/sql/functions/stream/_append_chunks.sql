-- Append one chunk to each of several streams, as ff.append_frames describes. Returns a row for
-- each chunk.
--
-- p_items lists the chunks to append, as indexes into the arrays of ff.append_frames. p_starts says
-- at which frame each chunk begins. No two of these chunks belong to the same execution. The caller
-- has locked the streams and checked the fences.
drop function if exists ff._append_chunks;
create function ff._append_chunks(
  p_partition_key   smallint,
  p_items           integer[],
  p_execution_ids   uuid[],
  p_positions       integer[],
  p_modes           text[],
  p_first_nos       bigint[],
  p_counts          integer[],
  p_starts          integer[],
  p_payloads        bytea[],
  p_kinds           text[],
  p_encodings       text[],
  p_correlation_ids text[],
  p_ttls            interval[],
  p_now             timestamptz
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
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_ms      constant bigint := floor(extract(epoch from p_now) * 1000)::bigint;
  -- These arrays have one value for each chunk: its outcome, the number of its frames that were
  -- stored before, the number of its new frames, and the bytes of the new frames.
  v_words   text[];
  v_skips   integer[];
  v_news    integer[];
  v_bytes   bigint[];
  v_details jsonb[];
  v_full    uuid[];
  v_row     record;
  v_problem text;
begin
  if p_items = '{}' then
    return;
  end if;
  select array_agg(case
             when i.first_no > s.last_no + 1 then 'gap'
             when i.size <= i.skip then 'repeat'
             when s.stored_bytes + b.bytes > s.max_bytes then 'stream_full'
             else 'appended' end order by i.o),
         array_agg(i.skip order by i.o), array_agg(i.size - i.skip order by i.o),
         array_agg(b.bytes order by i.o),
         array_agg(case
             when i.first_no > s.last_no + 1 then jsonb_build_object('last_no', s.last_no)
             when i.size > i.skip and s.stored_bytes + b.bytes > s.max_bytes
               then jsonb_build_object('bytes', s.stored_bytes, 'limit', s.max_bytes) end
           order by i.o)
    into v_words, v_skips, v_news, v_bytes, v_details
  from unnest(p_items) with ordinality u(n, o)
  cross join lateral (
    select y.last_no, y.stored_bytes, y.max_bytes from ff.stream y
    where y.partition_key = p_partition_key and y.execution_id = p_execution_ids[u.n]
    offset 0) s
  cross join lateral (
    select u.o, p_first_nos[u.n] as first_no, p_counts[u.n] as size,
           least(greatest(s.last_no + 1 - p_first_nos[u.n], 0), p_counts[u.n])::integer as skip
    offset 0) i
  cross join lateral (
    select coalesce(sum(octet_length(f.payload)), 0) as bytes
    from unnest(p_payloads[p_starts[u.n] + i.skip : p_starts[u.n] + i.size - 1]) f(payload)
    offset 0) b;

  for v_row in
    select u.o::integer as o, u.n, p_execution_ids[u.n] as id, v_skips[u.o] as skip
    from unnest(p_items) with ordinality u(n, o)
    where p_modes[u.n] = 'summary' and v_words[u.o] = 'appended'
  loop
    v_problem := ff._apply_patches(
      p_partition_key, v_row.id,
      p_payloads[p_starts[v_row.n] + v_row.skip : p_starts[v_row.n] + p_counts[v_row.n] - 1],
      p_now);
    if v_problem is not null then
      v_words[v_row.o] := 'invalid';
      v_details[v_row.o] := jsonb_build_object('field', 'payload', 'problem', v_problem);
    end if;
  end loop;

  insert into ff.stream_chunk (
    partition_key, execution_id, ms, seq, frame_count, mode, mode_no, attempt_index, epoch,
    generation, position, first_no, byte_count, appended_at, payloads, kinds, encodings,
    correlation_ids)
  select p_partition_key, p_execution_ids[u.n], greatest(v_ms, s.last_ms),
         case when s.last_ms >= v_ms then s.last_seq + 1 else 0 end,
         v_news[u.o], p_modes[u.n]::ff.stream_mode,
         v_news[u.o] + case p_modes[u.n] when 'durable' then s.durable_count
                                         when 'summary' then s.summary_count
                                         else s.best_effort_count end,
         e.attempt_index, e.epoch, s.generation, p_positions[u.n], p_first_nos[u.n] + v_skips[u.o],
         v_bytes[u.o], p_now,
         p_payloads[p_starts[u.n] + v_skips[u.o] : p_starts[u.n] + p_counts[u.n] - 1],
         p_kinds[p_starts[u.n] + v_skips[u.o] : p_starts[u.n] + p_counts[u.n] - 1],
         p_encodings[p_starts[u.n] + v_skips[u.o] : p_starts[u.n] + p_counts[u.n] - 1],
         case when p_correlation_ids is not null then
           p_correlation_ids[p_starts[u.n] + v_skips[u.o] : p_starts[u.n] + p_counts[u.n] - 1] end
  from unnest(p_items) with ordinality u(n, o)
  cross join lateral (
    select y.last_ms, y.last_seq, y.durable_count, y.summary_count, y.best_effort_count,
           y.generation
    from ff.stream y
    where y.partition_key = p_partition_key and y.execution_id = p_execution_ids[u.n]
    offset 0) s
  cross join lateral (
    select x.attempt_index, x.epoch from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = p_execution_ids[u.n]
    offset 0) e
  where v_words[u.o] = 'appended';

  update ff.stream s set
    last_no = i.last_no,
    last_seq = case when s.last_ms >= v_ms then s.last_seq + i.news else i.news - 1 end,
    last_ms = greatest(v_ms, s.last_ms),
    durable_count = s.durable_count + case when i.mode = 'durable' then i.news else 0 end,
    summary_count = s.summary_count + case when i.mode = 'summary' then i.news else 0 end,
    best_effort_count =
      s.best_effort_count + case when i.mode = 'best_effort' then i.news else 0 end,
    total_bytes = s.total_bytes + i.bytes,
    stored_bytes = s.stored_bytes + i.bytes,
    rate = case when i.mode <> 'best_effort' then s.rate
                when s.rate is null then 32 / i.ttl_seconds
                else 0.2 * (1000.0 * i.news / greatest(v_ms - s.rated_ms, 1)) + 0.8 * s.rate end,
    kept_frames = case when i.mode <> 'best_effort' then s.kept_frames
                       when s.rate is null then 64
                       else least(greatest(ceil(
                         (0.2 * (1000.0 * i.news / greatest(v_ms - s.rated_ms, 1)) + 0.8 * s.rate)
                         * i.ttl_seconds * 2), 64), 16384) end,
    rated_ms = case when i.mode = 'best_effort' then v_ms else s.rated_ms end,
    last_frame_at = p_now,
    expires_at = case when i.mode = 'best_effort' and s.durable_count + s.summary_count = 0
                   then (p_now at time zone 'UTC' + i.ttl * 2) at time zone 'UTC' end
  from (
    select p_partition_key as pk, p_execution_ids[u.n] as id, p_modes[u.n] as mode,
           p_first_nos[u.n] + p_counts[u.n] - 1 as last_no, v_news[u.o] as news,
           v_bytes[u.o] as bytes, coalesce(p_ttls[u.n], interval '10 s') as ttl,
           extract(epoch from coalesce(p_ttls[u.n], interval '10 s'))::double precision
             as ttl_seconds
    from unnest(p_items) with ordinality u(n, o)
    where v_words[u.o] = 'appended'
    offset 0) i
  where s.partition_key = i.pk and s.execution_id = i.id;

  v_full := array(
    select p_execution_ids[u.n] from unnest(p_items) with ordinality u(n, o)
    cross join lateral (
      select y.durable_count, y.summary_count, y.best_effort_count, y.trimmed_count, y.max_frames
      from ff.stream y
      where y.partition_key = p_partition_key and y.execution_id = p_execution_ids[u.n]
      offset 0) s
    where v_words[u.o] = 'appended' and case p_modes[u.n]
      -- Trim at most once in 64 frames.
      when 'best_effort' then s.best_effort_count / 64
                              > (s.best_effort_count - v_news[u.o]) / 64
      when 'summary' then s.summary_count / 64 > (s.summary_count - v_news[u.o]) / 64
      else s.durable_count - s.trimmed_count
           >= s.max_frames + greatest(64, s.max_frames / 10) end);
  perform ff._trim_streams(p_partition_key, v_full);

  return query
  select u.n, case when v_words[u.o] = 'repeat' then 'appended' else v_words[u.o] end,
         s.last_no, s.last_ms, s.last_seq, s.frame_count,
         case when p_modes[u.n] = 'summary' then s.summary_count end, v_details[u.o]
  from unnest(p_items) with ordinality u(n, o)
  cross join lateral (
    select y.last_no, y.last_ms, y.last_seq, y.summary_count,
           y.durable_count + y.summary_count + y.best_effort_count as frame_count
    from ff.stream y
    where y.partition_key = p_partition_key and y.execution_id = p_execution_ids[u.n]
    offset 0) s;
end;
$$;
