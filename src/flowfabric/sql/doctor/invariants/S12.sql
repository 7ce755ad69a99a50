-- A row of ff.execution obeys every rule about its state.
--
-- Three CHECKs of the table enforce these rules together, because a few large CHECKs cost less than
-- many small ones. This check names the rule that a row breaks. A row that breaks a rule was
-- written without the CHECKs, or the table is damaged.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Restore the row from a backup. If the execution is unfinished, cancel it and submit it
--          again.
select 'S12' as name, e.partition_key, e.execution_id,
       format('breaks the rule %s', r.rule) as problem
from ff.execution e
cross join lateral (values
  ('submitted_is_never_stored', e.phase <> 'submitted'),
  ('terminal_iff_outcome', (e.phase = 'terminal') = (e.outcome <> 'none')),
  ('terminal_iff_ended', (e.phase = 'terminal') = (e.terminal_at is not null)),
  ('owned_iff_active', (e.phase = 'active') = (e.ownership <> 'unowned')),
  ('eligible_iff_runnable', (e.phase = 'runnable') = (e.eligibility <> 'not_applicable')),
  ('lease_iff_owned',
   num_nonnulls(e.lease_id, e.lease_expires_at, e.worker_id, e.worker_instance_id)
     = case when e.ownership in ('leased', 'lease_expired_reclaimable') then 4 else 0 end),
  ('delayed_iff_until',
   (e.eligibility = 'not_eligible_until_time') = (e.delayed_until is not null)),
  ('running_iff_leased', (e.attempt_state = 'running_attempt') = (e.ownership = 'leased')),
  ('attempt_iff_counted',
   (e.attempt_id is not null) = (e.total_attempt_count > 0)
     and e.attempt_index = greatest(e.total_attempt_count - 1, 0)),
  ('blocked_only_while_waiting',
   e.blocking_reason = 'none'
     or (e.phase <> 'terminal' and e.attempt_state <> 'running_attempt')),
  ('policy_pause_is_an_operator_block',
   e.blocking_reason <> 'paused_by_policy' or e.eligibility = 'blocked_by_operator'
     or e.phase = 'suspended'),
  ('reclaim_wait_only_when_reclaimable',
   e.reclaim_at is null or e.ownership in ('lease_expired_reclaimable', 'lease_revoked')),
  ('cancelled_iff_by_somebody', (e.cancelled_by is not null) = (e.outcome = 'cancelled')),
  ('trimmed_only_when_ended', e.trim_at is null or e.phase = 'terminal'),
  ('follows_only_a_parent', not e.ends_with_parent or e.parent_id is not null),
  ('wakes_only_when_ended', not e.wakes_pending or e.phase = 'terminal'),
  ('waits_only_while_blocked',
   e.wait_left is null or ((e.eligibility = 'blocked_by_dependencies' or e.phase = 'suspended')
                           and e.wait_left > 0)),
  ('in_line_only_while_refused',
   e.line_id is null or e.eligibility in ('blocked_by_quota', 'blocked_by_budget')
     or e.ownership in ('lease_expired_reclaimable', 'lease_revoked')),
  ('company_is_part_of_the_reclaims', e.company_count between 0 and e.reclaim_count),
  ('lone_crashes_are_crashes', e.lone_crash_count between 0 and e.crash_count),
  ('progress_is_a_percentage', e.progress_percent between 0 and 100),
  ('limits',
   e.rank between 0 and 9000 and e.epoch >= 0 and e.version >= 1 and e.max_reclaims >= 0
     and octet_length(e.payload) <= 256 and octet_length(e.result) <= 1048576)
) r(rule, holds)
where not r.holds
