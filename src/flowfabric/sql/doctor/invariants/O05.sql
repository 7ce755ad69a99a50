-- Every event has its execution, or waits to be trimmed after it.
--
-- Events outlive an execution that was trimmed early, to a floor of 24 hours; until when is written
-- down in ff.event_trim. Others would stay for ever. That a flow was cancelled is an event of the
-- flow.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  An execution was deleted by hand: restore it from a backup. If that was meant, put a row
--          for it into ff.event_trim, and the event_trimmer deletes its events.
select 'O05' as name, v.partition_key, v.execution_id,
       format('%s events of no execution, the last one of %s', count(*),
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
