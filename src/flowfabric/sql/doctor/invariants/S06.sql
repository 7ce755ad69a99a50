-- The attempt state matches the rest of the row.
--
-- The attempt state tells the next claim whether to start an attempt or to resume one. A running
-- attempt has a lease. If the execution is suspended or has lost its lease, the attempt is
-- interrupted. If the execution ended without any attempt and was never replayed, the state stays
-- pending_first_attempt. After any other end the attempt state is attempt_terminal. replay_count
-- does not count replays that an upstream caused. So a flow member whose replay_count is 0 can have
-- the state attempt_terminal or pending_replay_attempt.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Cancel the execution, then replay it: the next claim starts a new attempt.
select 'S06' as name, e.partition_key, e.execution_id,
       format('attempt state %s does not match %s, %s, %s attempts, %s replays', e.attempt_state,
              e.phase, e.ownership, e.total_attempt_count, e.replay_count) as problem
from ff.execution e
where case
    when e.phase = 'active' and e.ownership = 'leased' then e.attempt_state <> 'running_attempt'
    when e.phase in ('active', 'suspended') then e.attempt_state <> 'attempt_interrupted'
    when e.phase = 'terminal' then
      e.attempt_state <> case when e.total_attempt_count > 0 or e.replay_count > 0
                                then 'attempt_terminal'::ff.attempt_state
                              else 'pending_first_attempt' end
      and not (e.flow_id is not null and e.attempt_state = 'attempt_terminal')
    when e.attempt_state = 'pending_first_attempt' then e.total_attempt_count > 0
    when e.attempt_state in ('attempt_interrupted', 'pending_retry_attempt')
      then e.total_attempt_count = 0
    when e.attempt_state = 'pending_replay_attempt'
      then e.replay_count = 0 and e.flow_id is null
    else true
  end
