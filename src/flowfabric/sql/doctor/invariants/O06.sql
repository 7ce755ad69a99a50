-- Every replay of an execution and every cancellation of a flow has an event.
--
-- The replay count of an execution equals the number of its `replayed` events. Replays that an
-- upstream caused are left out of both numbers. A cancelled flow has at least one event of its
-- cancellation, and more if it was cancelled again with a stricter policy. A flow that is not
-- cancelled has no such event.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  None is needed for the engine to continue; find out who wrote the row or the event.
with reborn as materialized (
  -- If an id was used again after a trim, only its last use counts.
  select s.partition_key, s.execution_id, max(array[s.generation, s.event_id]) as since
  from ff.event s
  where s.kind = 'submitted'
  group by s.partition_key, s.execution_id
  having count(*) > 1
)
select 'O06' as name, e.partition_key, e.execution_id,
       format('replayed %s times, but with %s events', e.replay_count,
              coalesce(c.number, 0)) as problem
from ff.execution e
left join (
  select v.partition_key, v.execution_id, count(*) as number
  from ff.event v
  where v.kind = 'replayed' and v.detail ->> 'caused_by' is null
    and not exists (
      select from reborn r
      where r.partition_key = v.partition_key and r.execution_id = v.execution_id
        and array[v.generation, v.event_id] < r.since)
  group by v.partition_key, v.execution_id
) c on c.partition_key = e.partition_key and c.execution_id = e.execution_id
where e.replay_count <> coalesce(c.number, 0)
union all
select 'O06', f.partition_key, null,
       format('flow %s is %s, but with %s events', f.flow_id,
              case when f.cancelled_at is null then 'not cancelled' else 'cancelled' end, c.number)
from ff.flow f
cross join lateral (
  select count(*) as number from ff."event" v
  where v.partition_key = f.partition_key and v.execution_id = f.flow_id
    and v.kind = 'flow_cancel_requested'
) c
where (c.number > 0) <> (f.cancelled_at is not null)
