-- Remove the oldest chunks of streams that have more frames than they keep. The caller has locked
-- the streams.
--
-- The newest best-effort frames stay, as many as kept_frames says. The newest 64 summary frames
-- stay, too. If the stream policy limits the number of durable frames, the oldest of them are
-- removed, too. This happens only when their number is over the limit by 64, or by a tenth of the
-- limit if a tenth is more than 64. Removing durable frames raises the floor of the stream, which
-- tells readers that frames are gone.
--
-- Only whole chunks are removed, so a few more frames may stay.
drop function if exists ff._trim_streams;
create function ff._trim_streams(p_partition_key smallint, p_execution_ids uuid[])
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_id     uuid;
  v_stream ff.stream;
  v_bytes  bigint;
  v_kept   record;
  v_ms     bigint;
  v_seq    integer;
begin
  foreach v_id in array p_execution_ids loop
    select s.* into v_stream
    from ff.stream s
    where s.partition_key = p_partition_key and s.execution_id = v_id;
    with gone as (
      delete from ff.stream_chunk c
      where c.partition_key = p_partition_key and c.execution_id = v_id
        and c.mode in ('summary', 'best_effort')
        and c.mode_no <= case when c.mode = 'summary' then v_stream.summary_count - 64
                              else v_stream.best_effort_count - v_stream.kept_frames end
      returning c.byte_count
    )
    select coalesce(sum(g.byte_count), 0) into v_bytes from gone g;
    if v_stream.durable_count - v_stream.trimmed_count
       >= v_stream.max_frames + greatest(64, v_stream.max_frames / 10) then
      -- Find the first chunk that stays.
      select c.ms, c.seq, c.mode_no - c.frame_count as trimmed into v_kept
      from ff.stream_chunk c
      where c.partition_key = p_partition_key and c.execution_id = v_id
        and c.ms >= v_stream.floor_ms
        and case when c.mode = 'durable' then true else false end
        and case when c.mode_no > v_stream.durable_count - v_stream.max_frames then true
                 else false end
      order by c.ms, c.seq limit 1;
      with gone as (
        delete from ff.stream_chunk c
        where c.partition_key = p_partition_key and c.execution_id = v_id
          and c.ms >= v_stream.floor_ms and (c.ms, c.seq) < (v_kept.ms, v_kept.seq)
          and case when c.mode = 'durable' then true else false end
        returning c.byte_count, c.ms, c.seq + c.frame_count as next_seq
      )
      select v_bytes + coalesce(sum(g.byte_count), 0),
             (array_agg(g.ms order by g.ms desc, g.next_seq desc))[1],
             (array_agg(g.next_seq order by g.ms desc, g.next_seq desc))[1]
        into v_bytes, v_ms, v_seq
      from gone g;
      update ff.stream s set
        trimmed_count = v_kept.trimmed,
        -- The floor is just above the last frame that was removed.
        floor_ms = coalesce(v_ms, s.floor_ms),
        floor_seq = coalesce(v_seq, s.floor_seq)
      where s.partition_key = p_partition_key and s.execution_id = v_id;
    end if;
    update ff.stream s set stored_bytes = s.stored_bytes - v_bytes
    where s.partition_key = p_partition_key and s.execution_id = v_id;
  end loop;
end;
$$;
