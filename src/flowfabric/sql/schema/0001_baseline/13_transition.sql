-- Every legal transition, as data. A null event_kind marks a quiet transition. In tests a trigger
-- refuses every transition that is not listed here.
create table ff.transition (
  number             text             not null,
  cause              ff.cause         not null,
  from_phase         ff.phase,
  from_ownership     ff.ownership,
  from_eligibility   ff.eligibility,
  from_attempt_state ff.attempt_state,
  to_phase           ff.phase         not null,
  to_ownership       ff.ownership     not null,
  to_eligibility     ff.eligibility   not null,
  to_attempt_state   ff.attempt_state not null,
  event_kind         ff.event_kind,
  constraint transition_once unique nulls not distinct (
    cause, from_phase, from_ownership, from_eligibility, from_attempt_state,
    to_phase, to_ownership, to_eligibility, to_attempt_state, event_kind)
);

-- The table has no primary key. Without this setting, Citus could not copy it to a new node.
alter table ff.transition replica identity full;

-- The rows of ff.transition. The headers of functions name a transition by its number, such as T6.
-- A transition from several states has one row per state.

-- The states of an unfinished execution.
create temporary table open_state on commit drop as
select 'runnable'::ff.phase as phase, 'unowned'::ff.ownership as ownership, e as eligibility,
       a as attempt_state
from unnest(array[
       'eligible_now', 'not_eligible_until_time', 'blocked_by_dependencies', 'blocked_by_budget',
       'blocked_by_quota', 'blocked_by_route', 'blocked_by_operator']::ff.eligibility[]) e,
     unnest(array[
       'pending_first_attempt', 'attempt_interrupted', 'pending_retry_attempt',
       'pending_replay_attempt']::ff.attempt_state[]) a
union all
select 'active', 'leased', 'not_applicable', 'running_attempt'
union all
select 'active', 'lease_expired_reclaimable', 'not_applicable', 'attempt_interrupted'
union all
select 'active', 'lease_revoked', 'not_applicable', 'attempt_interrupted'
union all
select 'suspended', 'unowned', 'not_applicable', 'attempt_interrupted';

insert into ff.transition
values
  ('T1', 'submit', null, null, null, null,
   'runnable', 'unowned', 'eligible_now', 'pending_first_attempt', 'submitted'),
  ('T2', 'submit', null, null, null, null,
   'runnable', 'unowned', 'not_eligible_until_time', 'pending_first_attempt', 'submitted'),
  -- the execution is put into the closed line of a gate
  ('T6', 'submit', null, null, null, null,
   'runnable', 'unowned', 'blocked_by_quota', 'pending_first_attempt', 'submitted'),
  ('T6', 'submit', null, null, null, null,
   'runnable', 'unowned', 'blocked_by_budget', 'pending_first_attempt', 'submitted'),
  -- a flow member with upstream members
  ('T3', 'submit', null, null, null, null,
   'runnable', 'unowned', 'blocked_by_dependencies', 'pending_first_attempt', 'submitted');

-- Transitions of a waiting execution. It keeps its attempt state, which decides the kind of the
-- next claim.
insert into ff.transition
select 'T3', 'apply_dependency'::ff.cause, phase, ownership, eligibility, attempt_state,
       phase, ownership, 'blocked_by_dependencies'::ff.eligibility, attempt_state,
       null::ff.event_kind
from open_state where phase = 'runnable' and eligibility <> 'blocked_by_dependencies'
union all
select 'T4', 'satisfy_dependencies', phase, ownership, eligibility, attempt_state,
       phase, ownership, 'eligible_now', attempt_state, null
from open_state where eligibility = 'blocked_by_dependencies'
union all
select 'T6', 'block', s.phase, s.ownership, s.eligibility, s.attempt_state,
       s.phase, s.ownership, b.eligibility, s.attempt_state, k.kind
from open_state s,
     unnest(array['blocked_by_budget', 'blocked_by_quota', 'blocked_by_route',
                  'blocked_by_operator']::ff.eligibility[]) b(eligibility),
     unnest(array[null, 'blocked']::ff.event_kind[]) k(kind)
where s.phase = 'runnable' and s.eligibility <> b.eligibility
union all
select 'T7', 'unblock', s.phase, s.ownership, s.eligibility, s.attempt_state,
       s.phase, s.ownership, 'eligible_now', s.attempt_state, k.kind
from open_state s,
     unnest(array[null, 'unblocked']::ff.event_kind[]) k(kind)
where s.eligibility in ('blocked_by_budget', 'blocked_by_quota', 'blocked_by_route',
                        'blocked_by_operator')
union all
select 'T8', 'promote', s.phase, s.ownership, s.eligibility, s.attempt_state,
       s.phase, s.ownership, 'eligible_now', s.attempt_state, k.kind
from open_state s,
     unnest(array[null, 'promoted']::ff.event_kind[]) k(kind)
where s.eligibility = 'not_eligible_until_time'
union all
select 'T11', 'change_priority', phase, ownership, eligibility, attempt_state,
       phase, ownership, eligibility, attempt_state, 'priority_changed'
from open_state where phase = 'runnable';

-- A claim starts a lease. Executions in the line of a gate become active directly.
insert into ff.transition
select 'T9', 'claim'::ff.cause, phase, ownership, eligibility, attempt_state,
       'active'::ff.phase, 'leased'::ff.ownership, 'not_applicable'::ff.eligibility,
       'running_attempt'::ff.attempt_state, 'claimed'::ff.event_kind
from open_state
where eligibility in ('eligible_now', 'blocked_by_quota', 'blocked_by_budget')
  and attempt_state <> 'attempt_interrupted'
union all
select 'T10', 'resume', phase, ownership, eligibility, attempt_state,
       'active', 'leased', 'not_applicable', 'running_attempt', 'resumed'
from open_state
where eligibility in ('eligible_now', 'blocked_by_quota', 'blocked_by_budget')
  and attempt_state = 'attempt_interrupted'
union all
select 'T21', 'reclaim', phase, ownership, eligibility, attempt_state,
       'active', 'leased', 'not_applicable', 'running_attempt', 'reclaimed'
from open_state where ownership in ('lease_expired_reclaimable', 'lease_revoked');

-- The holder of a live lease ends it.
insert into ff.transition
select t.number, t.cause::ff.cause, s.phase, s.ownership, s.eligibility, s.attempt_state,
       t.phase::ff.phase, 'unowned', t.eligibility::ff.eligibility,
       t.attempt_state::ff.attempt_state, t.kind::ff.event_kind
from open_state s, (values
  ('T12', 'complete', 'terminal', 'not_applicable', 'attempt_terminal', 'completed'),
  ('T13', 'schedule_retry', 'runnable', 'not_eligible_until_time', 'pending_retry_attempt',
          'retry_scheduled'),
  ('T14', 'fail', 'terminal', 'not_applicable', 'attempt_terminal', 'failed'),
  ('T15', 'delay', 'runnable', 'not_eligible_until_time', 'attempt_interrupted', 'delayed'),
  ('T15', 'delay', 'runnable', 'eligible_now', 'attempt_interrupted', 'delayed'),
  ('T15', 'release', 'runnable', 'eligible_now', 'attempt_interrupted', 'released'),
  -- a budget refused its usage
  ('T15', 'release', 'runnable', 'blocked_by_budget', 'attempt_interrupted', 'released'),
  ('T16', 'wait_children', 'runnable', 'blocked_by_dependencies', 'attempt_interrupted', 'waiting'),
  ('T16', 'wait_children', 'runnable', 'eligible_now', 'attempt_interrupted', 'waiting'),
  ('T16', 'wait_for_runs', 'runnable', 'blocked_by_dependencies', 'attempt_interrupted', 'waiting'),
  ('T16', 'wait_for_runs', 'runnable', 'eligible_now', 'attempt_interrupted', 'waiting'),
  ('T17', 'suspend', 'suspended', 'not_applicable', 'attempt_interrupted', 'suspended'),
  ('T30', 'hold', 'runnable', 'blocked_by_operator', 'attempt_interrupted', 'held'),
  ('T31', 'continue', 'runnable', 'eligible_now', 'attempt_interrupted', 'continued')
) t(number, cause, phase, eligibility, attempt_state, kind)
where s.ownership = 'leased';

-- A running execution exceeded a budget that only warns.
insert into ff.transition
select 'T32', 'report_usage', phase, ownership, eligibility, attempt_state,
       phase, ownership, eligibility, attempt_state, 'budget_exceeded'
from open_state where ownership = 'leased';

-- The lease is taken away; the row stays active until a worker reclaims it.
insert into ff.transition
select t.number, t.cause::ff.cause, s.phase, s.ownership, s.eligibility, s.attempt_state,
       'active'::ff.phase, t.ownership::ff.ownership, 'not_applicable'::ff.eligibility,
       'attempt_interrupted'::ff.attempt_state,
       t.kind::ff.event_kind
from open_state s, (values
  ('T19', 'expire_lease', 'lease_expired_reclaimable', 'lease_expired'),
  ('T20', 'revoke_lease', 'lease_revoked', 'lease_revoked')
) t(number, cause, ownership, kind)
where s.ownership = 'leased'
union all
-- A timed-out attempt is retried if the policy allows it. Otherwise the execution expires (T24,
-- below).
select 'T24', 'time_out', phase, ownership, eligibility, attempt_state,
       'runnable', 'unowned', 'not_eligible_until_time', 'pending_retry_attempt', 'retry_scheduled'
from open_state where phase = 'active';

-- An execution ends from any state. If it had no attempt, it keeps pending_first_attempt.
insert into ff.transition
select t.number, t.cause::ff.cause, s.phase, s.ownership, s.eligibility, s.attempt_state,
       'terminal'::ff.phase, 'unowned'::ff.ownership, 'not_applicable'::ff.eligibility,
       case s.attempt_state
         when 'pending_first_attempt' then 'pending_first_attempt'::ff.attempt_state
         else 'attempt_terminal'::ff.attempt_state
       end,
       t.kind::ff.event_kind
from open_state s, (values
  ('T5', 'skip', 'skipped'),
  ('T23', 'cancel', 'cancelled'),
  ('T24', 'expire', 'expired')
) t(number, cause, kind)
union all
select 'T24', 'time_out', phase, ownership, eligibility, attempt_state,
       'terminal', 'unowned', 'not_applicable', 'attempt_terminal', 'expired'
from open_state where phase = 'active'
union all
select 'T22', 'exceed_reclaims', phase, ownership, eligibility, attempt_state,
       'terminal', 'unowned', 'not_applicable', 'attempt_terminal', 'failed'
from open_state where ownership in ('lease_expired_reclaimable', 'lease_revoked')
union all
select 'T25', 'time_out_suspension', s.phase, s.ownership, s.eligibility, s.attempt_state,
       'terminal', 'unowned', 'not_applicable', 'attempt_terminal', k.kind
from open_state s, unnest(array['failed', 'cancelled', 'expired']::ff.event_kind[]) k(kind)
where s.phase = 'suspended';

-- A suspension ends by a signal, by the ends of runs or by an operator (T18), or by its timeout
-- (T26). Or it is escalated (T27).
insert into ff.transition
select t.number, t.cause::ff.cause, s.phase, s.ownership, s.eligibility, s.attempt_state,
       t.phase::ff.phase, 'unowned', t.eligibility::ff.eligibility, 'attempt_interrupted',
       t.kind::ff.event_kind
from open_state s, (values
  ('T18', 'wake', 'runnable', 'eligible_now', 'woken'),
  ('T18', 'wake', 'runnable', 'not_eligible_until_time', 'woken'),
  ('T26', 'time_out_suspension', 'runnable', 'eligible_now', 'woken'),
  ('T27', 'escalate', 'suspended', 'not_applicable', 'escalated')
) t(number, cause, phase, eligibility, kind)
where s.phase = 'suspended';

-- Only a replay leaves the terminal phase.
insert into ff.transition
select t.number, 'replay', 'terminal', 'unowned', 'not_applicable', a,
       'runnable', 'unowned', t.eligibility::ff.eligibility, 'pending_replay_attempt', 'replayed'
from unnest(array['attempt_terminal', 'pending_first_attempt']::ff.attempt_state[]) a, (values
  ('T28', 'eligible_now'),
  ('T29', 'blocked_by_dependencies')
) t(number, eligibility);
