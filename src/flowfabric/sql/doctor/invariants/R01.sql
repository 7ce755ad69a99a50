-- The execution of a grant exists, has not ended and is not leased.
--
-- The grant is removed when the execution is claimed, ends or is trimmed. The primary key of the
-- table allows at most one grant per execution.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Wait at most a minute: the grant expires, and the reconciler grant_reaper removes the
--          grant.
select 'R01' as name, g.partition_key, g.execution_id,
       case when e.execution_id is null then format('a %s grant without an execution', g.kind)
            else format('a %s grant of an execution that is %s, %s', g.kind, e.phase, e.ownership)
       end as problem
from ff.grant g
left join ff.execution e on e.partition_key = g.partition_key and e.execution_id = g.execution_id
where e.execution_id is null or e.phase = 'terminal' or e.ownership = 'leased'
