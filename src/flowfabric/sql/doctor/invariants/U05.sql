-- No suspended execution has a signal that one of its waits would take.
--
-- The delivery of a signal wakes the execution. If the delivery could not lock the execution, the
-- signal is in the inbox until ff.notice_signals has noticed it. An execution with a signal in the
-- inbox is not checked. A wait is checked only if it waits for one signal or for one waitpoint.
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
left join ff.waitpoint p
  on p.partition_key = s.partition_key and p.execution_id = s.execution_id
    and p.waitpoint_id::text = x.condition ->> 'waitpoint'
    and p.closed_at is null and p.approval_id is null
    and not exists (
      select from ff.signal z
      where z.partition_key = s.partition_key and z.execution_id = s.execution_id
        and z.waitpoint_id = p.waitpoint_id and z.taken_at is null and z.noticed_at is not null)
cross join lateral (
  select y.signal_id from ff.signal y
  where y.partition_key = s.partition_key and y.execution_id = s.execution_id
    and case when x.condition ? 'waitpoint'
               then y.waitpoint_id = (x.condition ->> 'waitpoint')::uuid
                 or (y.waitpoint_id is null and y.name = p.key)
             else y.waitpoint_id is null and y.name = x.condition ->> 'signal' end
    and (not x.condition ? 'name' or y.name = x.condition ->> 'name')
    and y.taken_at is null and y.noticed_at is not null
  limit 1
) g
where s.closed_at is null
  and not exists (
    select from ff.signal_inbox b
    where b.partition_key = s.partition_key and b.execution_id = s.execution_id)
