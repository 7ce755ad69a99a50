-- Steps: the values that a handler recorded, so that a later run does not compute them again.

-- A later run of the handler finds a step by name and occurrence and uses its recorded value.
-- `position` counts the sequential steps of the handler 0, 1, 2, ...; steps that run side by side
-- share one position. It is compared only where no other step was in flight. The kind `failure` means
-- that the step failed and the handler continued; the value describes the failure as JSON.
create type ff.step_kind as enum ('step', 'failure', 'sleep', 'now');

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
  -- the end of a sleep
  until_at      timestamptz,
  encoding      text,
  value         bytea,
  -- the highest position that the run knew to be recorded when the step started, -1 for none; null if
  -- the caller did not pass it
  follows       integer,
  primary key (partition_key, execution_id, name, occurrence),
  constraint step_limits check (
    occurrence >= 0 and position >= 0 and octet_length(name) between 1 and 256
    and octet_length(value) <= 1048576),
  constraint only_a_sleep_has_an_end check ((kind = 'sleep') = (until_at is not null))
) with (
  autovacuum_vacuum_insert_scale_factor = 0.1
);
