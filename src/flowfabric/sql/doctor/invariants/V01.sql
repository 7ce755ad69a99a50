-- The frames of a lease are numbered without overlaps. If all frames of the stream are durable,
-- they are numbered without gaps, too.
--
-- Summary frames and best-effort frames may be removed, which leaves gaps. In a stream without
-- such frames, a gap is a lost frame. An overlap is a frame that is stored twice.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Report a bug. The frames that are stored can be read.
select 'V01' as name, k.partition_key, k.execution_id,
       format('frame %s of epoch %s follows frame %s', k.first_no, k.epoch, k.previous_no)
         as problem
from (
  select c.partition_key, c.execution_id, c.epoch, c.first_no,
         lag(c.first_no + c.frame_count - 1)
           over (partition by c.partition_key, c.execution_id, c.epoch order by c.ms, c.seq)
           as previous_no
  from ff.stream_chunk c
  where c.mode <> 'rewind'
) k
join ff.stream s on s.partition_key = k.partition_key and s.execution_id = k.execution_id
where k.first_no <= k.previous_no
   or (k.first_no > k.previous_no + 1 and s.summary_count + s.best_effort_count = 0)
