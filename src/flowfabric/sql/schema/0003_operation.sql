-- Executions in operation: steered by hand, bounded in time, claimed by grant, trimmed at the end;
-- and the workers that are there.

alter table ff.execution
  add column cancellation_reason text,
  add column cancelled_by        text,
  add column progress_percent    smallint,
  add column progress_message    text,
  add column progressed_at       timestamptz,
  add column blocked_at          timestamptz,
  -- how long the execution stays after its end, where it has a say of its own, and until when
  add column retention           interval,
  add column trim_at             timestamptz,
  add constraint progress_is_a_percentage check (progress_percent between 0 and 100),
  add constraint cancelled_iff_by_somebody check (
    (cancelled_by is not null) = (outcome = 'cancelled')),
  add constraint trimmed_only_when_ended check (trim_at is null or phase = 'terminal');

-- Only what has a retention of its own enters; the rest is found by age, oldest first.
create index execution_trim on ff.execution (partition_key, trim_at) where trim_at is not null;

-- due_at is a lower bound of every armed timer; until now a deadline was not one of them.
update ff.execution set due_at = least(due_at, deadline_at, attempt_deadline_at)
where phase <> 'terminal' and (deadline_at is not null or attempt_deadline_at is not null);

create type ff.grant_kind as enum ('claim', 'resume', 'reclaim');

-- A promise to one worker, for a short time, that it may claim one execution. The key is known to
-- whoever was granted; only its hash is kept.
create table ff.grant (
  partition_key      smallint      not null,
  execution_id       uuid          not null,
  kind               ff.grant_kind not null,
  key_hash           bytea         not null,
  worker_id          text          not null,
  worker_instance_id text          not null,
  issued_at          timestamptz   not null,
  expires_at         timestamptz   not null,
  primary key (partition_key, execution_id),
  constraint key_hash_is_sha256 check (octet_length(key_hash) = 32)
);

-- Partial for the same reason as idempotency_key_expiry: no way to look one grant up.
create index grant_expiry on ff.grant (partition_key, expires_at)
  where expires_at > '-infinity';

alter table ff.lane
  add column changed_at timestamptz,
  add column changed_by text,
  add column reason     text,
  add column retention  interval;

-- The worker processes that are alive: heartbeat_at + liveness_ttl says until when. An empty
-- namespace is a worker for every namespace; null lanes or tasks mean any.
create table ff.worker (
  namespace          text        not null,
  worker_instance_id text        not null,
  worker_id          text        not null,
  lanes              text[],
  tasks              text[],
  capabilities       text[]      not null,
  liveness_ttl       interval    not null,
  registered_at      timestamptz not null,
  heartbeat_at       timestamptz not null,
  primary key (namespace, worker_instance_id)
);

create type ff.worker_event_kind as enum ('registered', 'marked_dead', 'ttl_swept');

-- What became of workers. Heartbeats are not written down.
create table ff.worker_event (
  worker_event_id    bigint               not null generated always as identity,
  namespace          text                 not null,
  worker_instance_id text                 not null,
  worker_id          text                 not null,
  kind               ff.worker_event_kind not null,
  occurred_at        timestamptz          not null,
  actor              text,
  reason             text,
  primary key (worker_event_id)
);

-- Events outlive an execution that was trimmed early; here is until when.
create table ff.event_trim (
  partition_key smallint    not null,
  due_at        timestamptz not null,
  execution_id  uuid        not null,
  primary key (partition_key, due_at, execution_id)
);
