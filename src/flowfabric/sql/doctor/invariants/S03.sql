-- An execution has an eligibility if and only if it is runnable.
--
-- In the other phases, the eligibility is `not_applicable`. Two values are never stored. One is the
-- phase `submitted`. The other is the eligibility `blocked_by_lane_state`: a claim reads the state
-- from the lane.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Cancel the execution, then replay it.
select 'S03' as name, e.partition_key, e.execution_id,
       format('eligibility %s does not match phase %s', e.eligibility, e.phase) as problem
from ff.execution e
where (e.phase = 'runnable') = (e.eligibility = 'not_applicable')
   or e.phase = 'submitted' or e.eligibility = 'blocked_by_lane_state'
