-- What a handler leaves behind while it runs, so that a later run of it does not do it again.

-- One thing a handler did once. A later run of the same handler finds it by name and occurrence and
-- does not do it again. `position` is 0, 1, 2, ... for the steps of the handler's own flow; those it
-- starts beside itself share one. It is compared only where no other step was in flight.
-- `failure`: it failed, and the handler went on all the same; the value tells of it as JSON.
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
  -- until when a sleep lasts
  until_at      timestamptz,
  encoding      text,
  value         bytea,
  -- the highest position that its run knew to be recorded when it was started, -1 for none; null if
  -- whoever recorded it did not say
  follows       integer,
  primary key (partition_key, execution_id, name, occurrence),
  constraint step_limits check (
    occurrence >= 0 and position >= 0 and octet_length(name) between 1 and 256
    and octet_length(value) <= 1048576),
  constraint only_a_sleep_has_an_end check ((kind = 'sleep') = (until_at is not null))
) with (
  autovacuum_vacuum_insert_scale_factor = 0.1
);
