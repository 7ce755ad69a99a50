-- A delayed execution has a time at which its delay ends, and due_at is never later than the first
-- timer.
--
-- The timers of a row are its delay, the time of its reclaim (reclaim_at), its deadline, its lease
-- and its attempt timeout. The reconcilers find rows by due_at only. So due_at can be earlier than
-- the first timer, but not later: otherwise the timer would be handled too late.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `flowfabric retry ID` makes a delayed execution due now. Cancel and replay an execution
--          in any other state.
select 'S05' as name, e.partition_key, e.execution_id,
       format('%s, delayed until %s, due_at %s', e.eligibility,
              coalesce(e.delayed_until::text, 'no time'),
              coalesce(e.due_at::text, 'never')) as problem
from ff.execution e
where (e.eligibility = 'not_eligible_until_time') <> (e.delayed_until is not null)
   or coalesce(e.due_at, 'infinity') > least(
        e.delayed_until, e.reclaim_at,
        case when e.phase <> 'terminal' then e.deadline_at end,
        case when e.ownership = 'leased' then least(e.lease_expires_at, e.attempt_deadline_at) end)
