-- An execution that belongs to a code version has steps.
--
-- When code with a version records the first step of an execution, the execution moves to the
-- route with that version. When the last remaining step is deleted, the execution moves back to
-- the route without a version. If it did not move back, it would wait for workers of a version that
-- it does not need.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `flowfabric replay <id> --fresh` moves the execution back. The execution must have
--          ended or be held.
select 'J03' as name, e.partition_key, e.execution_id,
       format('code version %s, but no step', coalesce(r.code_version, 'unknown')) as problem
from ff.execution e
left join ff.route r on r.route_id = e.route_id
where e.route_id >= 4611686018427387904
  and not exists (
    select from ff.step s
    where s.partition_key = e.partition_key and s.execution_id = e.execution_id)
