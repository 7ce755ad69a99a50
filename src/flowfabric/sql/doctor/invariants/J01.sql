-- The steps of an execution are consistent.
--
-- A step belongs to an execution and was recorded under one of its leases, in one of its attempts.
-- A step is sequential if it started while no other step was in flight. No two sequential steps of
-- an execution have the same position, except that a patch has the position of the step after it.
-- A sleep has an end time. A wait can have an end time. Other steps have none.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `flowfabric replay <id> --fresh` forgets the steps of an execution that has ended or is
--          held. Rows without an execution are left over from a deletion by hand.
select 'J01' as name, s.partition_key, s.execution_id,
       case when e.execution_id is null then format('step %s without an execution', s.name)
            else format('step %s#%s at %s: epoch %s of %s, attempt %s of %s, recorded at %s',
                        s.name, s.occurrence, s.position, s.epoch, e.epoch, s.attempt_index + 1,
                        e.attempt_index + 1, s.recorded_at) end as problem
from ff.step s
left join ff.execution e on e.partition_key = s.partition_key and e.execution_id = s.execution_id
where e.execution_id is null
   or s.epoch not between 1 and e.epoch or s.attempt_index not between 0 and e.attempt_index
   or s.recorded_at < e.created_at
   or s.occurrence < 0 or s.position < 0
   or (s.kind <> 'wait' and (s.kind = 'sleep') <> (s.until_at is not null))
   or (s.kind in ('sleep', 'now') and s.value is not null)
union all
select 'J01', s.partition_key, s.execution_id,
       format('%s steps in sequence at position %s: %s', count(*), s.position,
              string_agg(s.name, ', ' order by s.name))
from ff.step s
where s.is_sequential and not starts_with(s.name, 'ff.patch ')
group by s.partition_key, s.execution_id, s.position
having count(*) > 1
