-- An open suspension names only open waits of its execution, and belongs to the latest attempt.
--
-- A wait cannot wake the execution if it does not exist, if it is not open, or if its answer was
-- taken.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `flowfabric resume <id>` ends the suspension and its waits. Then report a bug.
select 'U02' as name, s.partition_key, s.execution_id,
       format('its suspension waits for %s#%s, which %s', w.name, w.occurrence,
              case when x.name is null then 'does not exist'
                   when x.kind <> 'wait' then format('is a %s', x.kind)
                   when x.taken_as is not null then 'was taken'
                   else 'is not open' end) as problem
-- Begin with ff.execution. If doctor examines only some executions, it sees the suspensions of all
-- executions, but only the steps of the examined executions.
from ff.execution e
join ff.suspension s on s.partition_key = e.partition_key and s.execution_id = e.execution_id
cross join lateral unnest(s.wait_names, s.wait_occurrences) w(name, occurrence)
left join ff.step x
  on x.partition_key = s.partition_key and x.execution_id = s.execution_id
    and x.name = w.name and x.occurrence = w.occurrence
where s.closed_at is null
  and (x.name is null or x.kind <> 'wait' or x.taken_as is not null or x.opened_at is null)
union all
select 'U02', s.partition_key, s.execution_id,
       format('its suspension is of attempt %s, but attempt %s is the latest', s.attempt_index + 1,
              e.attempt_index + 1)
from ff.execution e
join ff.suspension s on s.partition_key = e.partition_key and s.execution_id = e.execution_id
where s.closed_at is null and s.attempt_index <> e.attempt_index
