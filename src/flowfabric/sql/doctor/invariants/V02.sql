-- The ids of the frames of an execution rise, and the epochs of the leases that wrote the frames
-- never fall.
--
-- Readers continue after the last id that they have read. A frame with a lower id would never be
-- read. Every frame has a stream, and no id is higher than the last id that the stream stores.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Report a bug. Read the stream from its beginning.
select 'V02' as name, k.partition_key, k.execution_id,
       format('frame %s-%s of epoch %s follows frame %s-%s of epoch %s; the stream is at %s-%s',
              k.ms, k.seq, k.epoch, k.previous_ms, k.previous_seq, k.previous_epoch, s.last_ms,
              s.last_seq) as problem
from (
  select c.partition_key, c.execution_id, c.ms, c.seq, c.frame_count, c.epoch,
         lag(c.ms) over w as previous_ms, lag(c.seq + c.frame_count - 1) over w as previous_seq,
         lag(c.epoch) over w as previous_epoch
  from ff.stream_chunk c
  window w as (partition by c.partition_key, c.execution_id order by c.ms, c.seq)
) k
left join ff.stream s on s.partition_key = k.partition_key and s.execution_id = k.execution_id
where (k.ms, k.seq) <= (k.previous_ms, k.previous_seq) or k.epoch < k.previous_epoch
   or s.execution_id is null or (k.ms, k.seq + k.frame_count - 1) > (s.last_ms, s.last_seq)
