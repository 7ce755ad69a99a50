-- What a handler leaves behind while it runs: its steps, its children, the runs it waits for; and
-- the schedules that submit by themselves.

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
  primary key (partition_key, execution_id, name, occurrence),
  constraint step_limits check (
    occurrence >= 0 and position >= 0 and octet_length(name) between 1 and 256
    and octet_length(value) <= 1048576),
  constraint only_a_sleep_has_an_end check ((kind = 'sleep') = (until_at is not null))
) with (
  autovacuum_vacuum_insert_scale_factor = 0.1
);

-- An execution that waits for others: a row for each of them while it waits, gone when it goes on.
create table ff.run_wait (
  partition_key smallint    not null,
  waiter_id     uuid        not null,
  target_id     uuid        not null,
  wait_no       integer     not null,
  ended_at      timestamptz,
  primary key (partition_key, waiter_id, target_id)
);

create index run_wait_target on ff.run_wait (partition_key, target_id) where ended_at is null;

alter table ff.execution
  -- the execution whose handler submitted this one
  add column parent_id        uuid,
  add column ends_with_parent boolean not null default false,
  -- its end concerns another execution: one that waits for it, or a child that ends with it
  add column is_awaited       boolean not null default false,
  -- it has ended, and somebody it concerns could not be told at once
  add column wakes_pending    boolean not null default false,
  -- how many waits for runs there were, and how many runs have yet to end in the present one
  add column wait_no          integer not null default 0,
  add column wait_left        integer,
  add constraint follows_only_a_parent check (not ends_with_parent or parent_id is not null),
  add constraint wakes_only_when_ended check (not wakes_pending or phase = 'terminal'),
  add constraint waits_only_while_blocked check (
    wait_left is null or (eligibility = 'blocked_by_dependencies' and wait_left > 0));

create index execution_parent on ff.execution (partition_key, parent_id, execution_id)
  where parent_id is not null;

create index execution_wakes on ff.execution (partition_key, execution_id) where wakes_pending;

alter table ff.execution_body
  -- W3C traceparent and tracestate of whoever submitted, as JSON
  add column trace_context text,
  add column task_version  text;

create type ff.misfire as enum ('once', 'skip', 'all');

create type ff.schedule_state as enum ('active', 'paused', 'orphaned');

-- An app that declares schedules, by its name. Its newest version says which ones there are;
-- generation counts how often that changed.
create table ff.schedule_app (
  namespace  text      not null,
  app        text      not null,
  version    integer[] not null,
  generation bigint    not null default 0,
  primary key (namespace, app),
  constraint a_version_has_numbers check (
    cardinality(version) >= 1 and cardinality(version) <= 8
    and array_position(version, null) is null)
);

-- A task that is submitted at the times of a rule. The rule is read by the client, which alone knows
-- calendars; next_at moves only from the value it was read with, so that a time fires once.
create table ff.schedule (
  namespace        text              not null,
  app              text              not null,
  name             text              not null,
  schedule_id      uuid              not null,
  route_id         bigint            not null,
  cron             text,
  every            interval,
  time_zone        text              not null,
  -- the times of `every` are counted from here; fixed if the app says from when
  anchor_at        timestamptz,
  is_anchored      boolean           not null default false,
  -- how often the rule changed: a time computed with another one does not count
  rule_no          integer           not null default 0,
  misfire          ff.misfire        not null,
  payload_encoding text,
  payload          bytea,
  priority         integer           not null default 0,
  deadline         interval,
  max_reclaims     integer,
  policy           jsonb,
  tags             jsonb,
  task_version     text,
  is_paused        boolean           not null default false,
  orphaned_at      timestamptz,
  state            ff.schedule_state not null generated always as (
    case when orphaned_at is not null then 'orphaned'::ff.schedule_state
         when is_paused then 'paused'::ff.schedule_state
         else 'active'::ff.schedule_state end) stored,
  next_at          timestamptz,
  last_at          timestamptz,
  last_id          uuid,
  fired_count      bigint            not null default 0,
  -- the call that fired last, and how many times: a repeat of it gets its answer
  last_call_id     uuid,
  last_call_count  integer,
  declared_at      timestamptz       not null,
  changed_at       timestamptz,
  changed_by       text,
  reason           text,
  primary key (namespace, app, name),
  unique (schedule_id),
  constraint one_rule check (num_nonnulls(cron, every) = 1),
  constraint every_has_an_anchor check ((every is null) = (anchor_at is null)),
  constraint only_an_active_schedule_has_a_next_time check (
    (next_at is not null) = (orphaned_at is null and not is_paused)),
  constraint last_firing_is_whole check (
    num_nulls(last_at, last_id) in (0, 2) and (last_at is null) = (fired_count = 0))
);
