-- Retries, reclaims and replays stay within their limits.
--
-- The limits are max_retries (default 3) and max_replay_count (default 10) of the stored policy,
-- and the column max_reclaims. A reclaim after a crash does not count if the handler of the
-- execution had not started, or if the execution was no suspect and ran beside others. An execution
-- that crashed three times while it ran alone is neither leased nor runnable. The crash count of a
-- completed execution is 0.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  If the execution is unfinished, cancel it. Find out which operation exceeded the limit.
select 'L07' as name, e.partition_key, e.execution_id,
       format('%s retries, %s of %s reclaims (%s beside others), %s replays, %s crashes '
              '(%s alone): more than allowed', e.retry_count, e.reclaim_count, e.max_reclaims,
              e.company_count, e.replay_count, e.crash_count, e.lone_crash_count) as problem
from ff.execution e
left join ff.execution_body b
  on b.partition_key = e.partition_key and b.execution_id = e.execution_id
where e.reclaim_count - e.company_count > e.max_reclaims
   or (e.lone_crash_count >= 3 and (e.ownership = 'leased' or e.phase = 'runnable'))
   or (e.outcome = 'success' and e.crash_count > 0)
   or e.retry_count > case
        when jsonb_typeof(b.policy #> '{retry_policy,max_retries}') = 'number'
          then (b.policy #>> '{retry_policy,max_retries}')::numeric
        else 3 end
   or e.replay_count > case
        when jsonb_typeof(b.policy -> 'max_replay_count') = 'number'
          then (b.policy ->> 'max_replay_count')::numeric
        else 10 end
