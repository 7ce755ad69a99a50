-- Steps: the values that a handler recorded, so that a later run does not compute them again.

-- A later run of the handler finds a step by name and occurrence, and uses its recorded value.
-- `position` counts the sequential steps of the handler: 0, 1, 2, ... Steps that run side by side
-- share one position. A later run compares the position of a step only if no other step was in
-- flight. The kind `failure` means that the step failed and the handler continued; the value
-- describes the failure as JSON.
--
-- The kind `wait` is a wait for signals. It is open until the holder takes its answer: signals, its
-- timeout, or the decision of an operator to resume the execution. Its value is the payload of the
-- signal. A retry or a replay drops an answer other than a signal: opened_at is then null, and the
-- next call of ff.ask_waits opens the wait again.
create type ff.step_kind as enum ('step', 'failure', 'sleep', 'now', 'wait');

create table ff.step (
  partition_key smallint     not null,
  execution_id  uuid         not null,
  name          text         not null,
  occurrence    integer      not null,
  position      integer      not null,
  is_sequential boolean      not null,
  kind          ff.step_kind not null,
  attempt_index integer      not null,
  epoch         bigint       not null,
  recorded_at   timestamptz  not null,
  -- the end of a sleep, or the timeout of a wait
  until_at      timestamptz,
  encoding      text,
  value         bytea,
  -- the highest recorded position that the run knew when the step started; -1 for none; null if the
  -- caller did not pass it
  follows       integer,
  -- what a wait waits for
  condition     jsonb,
  opened_at     timestamptz,
  -- when the answer became complete; if several branches race, the earliest time wins
  ready_at      timestamptz,
  taken_at      timestamptz,
  taken_as      text,
  signal_ids    uuid[],
  primary key (partition_key, execution_id, name, occurrence),
  constraint step_limits check (
    occurrence >= 0 and position >= 0 and octet_length(name) between 1 and case when kind = 'wait' then 300 else 256 end
    and octet_length(value) <= 1048576),
  constraint only_a_sleep_has_an_end check (
    case when kind = 'wait' then condition is not null
         else (kind = 'sleep') = (until_at is not null) and condition is null end),
  constraint a_wait_is_taken_as check (
    case when kind <> 'wait' then taken_at is null and taken_as is null
         else (taken_at is null) = (taken_as is null)
           and (taken_as is null or taken_as in ('signals', 'timeout', 'operator')) end)
) with (
  autovacuum_vacuum_insert_scale_factor = 0.1
);

-- Waits that no signal has answered. A retry or a replay drops any other answer, such as a timeout.
create index step_unanswered on ff.step (partition_key, execution_id)
  where kind = 'wait' and taken_as is distinct from 'signals';
