-- Every event has its execution, or a record of when the event will be trimmed.
--
-- Events are kept for at least 24 hours after the end of their execution. If the execution is
-- trimmed before its events, ff.event_trim records when the events will be trimmed. An event with
-- neither an execution nor a record in ff.event_trim would stay forever. The event of a cancelled
-- flow belongs to the flow and to no execution.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  An execution was deleted by hand: restore the execution from a backup. If the deletion
--          was intended, insert a row with the id of the execution into ff.event_trim. The
--          reconciler event_trimmer then deletes the events.
select 'O05' as name, v.partition_key, v.execution_id,
       format('%s events without an execution, the last one of %s', count(*),
              max(v.occurred_at)) as problem
from ff.event v
where not exists (
    select from ff.execution e
    where e.partition_key = v.partition_key and e.execution_id = v.execution_id)
  and not exists (
    select from ff.flow f
    where f.partition_key = v.partition_key and f.flow_id = v.execution_id
      and v.kind = 'flow_cancel_requested')
  and not exists (
    select from ff.event_trim t
    where t.partition_key = v.partition_key and t.execution_id = v.execution_id)
group by v.partition_key, v.execution_id
