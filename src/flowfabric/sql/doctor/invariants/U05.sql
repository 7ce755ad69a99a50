-- No suspended execution has a signal that one of its waits would take.
--
-- This looks at waits for one signal or one waitpoint. The delivery that stores a signal wakes the
-- execution, unless it could not lock its row: then the signal is in the inbox until
-- ff.notice_signals has seen it.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `flowfabric resume <id>`; then report a bug.
select 'U05' as name, s.partition_key, s.execution_id,
       format('suspended, though signal %s for its wait %s is there', g.signal_id, w.name)
         as problem
from ff.suspension s
cross join lateral unnest(s.wait_names, s.wait_occurrences) w(name, occurrence)
join ff.step x
  on x.partition_key = s.partition_key and x.execution_id = s.execution_id
    and x.name = w.name and x.occurrence = w.occurrence
cross join lateral (
  select y.signal_id from ff.signal y
  where y.partition_key = s.partition_key and y.execution_id = s.execution_id
    and case when x.condition ? 'waitpoint'
               then y.waitpoint_id = (x.condition ->> 'waitpoint')::uuid
             else y.waitpoint_id is null and y.name = x.condition ->> 'signal' end
    and (not x.condition ? 'name' or y.name = x.condition ->> 'name')
    and y.taken_at is null and y.noticed_at is not null
  limit 1
) g
where s.closed_at is null
  and not exists (
    select from ff.signal_inbox b
    where b.partition_key = s.partition_key and b.execution_id = s.execution_id)
