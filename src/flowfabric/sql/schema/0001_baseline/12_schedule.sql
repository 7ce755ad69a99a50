-- Schedules submit a task at the times of a rule.

create type ff.misfire as enum ('once', 'skip', 'all');

create type ff.schedule_state as enum ('active', 'paused', 'orphaned');

-- An app that declares schedules. Its newest version decides which schedules exist. generation
-- counts how often the declared schedules have changed.
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

-- A task that is submitted at the times of a rule. The client evaluates the rule, because only the
-- client knows calendars. A call changes next_at only if it is still the value that the caller
-- read, so that a time fires once.
create table ff.schedule (
  namespace        text              not null,
  app              text              not null,
  name             text              not null,
  schedule_id      uuid              not null,
  route_id         bigint            not null,
  cron             text,
  every            interval,
  time_zone        text              not null,
  -- the instant from which the times of `every` are counted; is_anchored says that the app chose it
  anchor_at        timestamptz,
  is_anchored      boolean           not null default false,
  -- how often the rule changed; a time computed with another rule is ignored
  rule_no          integer           not null default 0,
  misfire          ff.misfire        not null,
  payload_encoding text,
  payload          bytea,
  priority         integer           not null default 0,
  -- the options that submit_executions takes
  options          jsonb,
  is_paused        boolean           not null default false,
  orphaned_at      timestamptz,
  state            ff.schedule_state not null generated always as (
    case when orphaned_at is not null then 'orphaned'::ff.schedule_state
         when is_paused then 'paused'::ff.schedule_state
         else 'active'::ff.schedule_state end) stored,
  next_at          timestamptz,
  last_at          timestamptz,
  last_id          uuid,
  -- the partition of last_id: it depends on the number of partitions at that time
  last_partition   smallint,
  fired_count      bigint            not null default 0,
  -- the last call that fired the schedule, and how many times; a repeat of the call gets the same
  -- answer
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
