-- Workers: live worker instances, their history, and their last claims.

-- Live worker instances: an instance is alive until heartbeat_at + liveness_ttl. An empty namespace
-- means a worker for every namespace; null lanes or tasks mean any.
create table ff.worker (
  namespace          text        not null,
  worker_instance_id text        not null,
  worker_id          text        not null,
  lanes              text[],
  tasks              text[],
  capabilities       text[]      not null,
  liveness_ttl       interval    not null,
  -- the version of its code, and other versions whose journals it reads. If a version has had no
  -- worker for version_grace, this worker takes over its executions
  code_version       text,
  reads              text[]      not null default '{}',
  version_grace      interval    not null default '60 seconds',
  -- whether it only finishes executions that its version has begun
  finish_only        boolean     not null default false,
  -- where it runs, and how many handlers it can run at once. Its last heartbeat said how many it
  -- runs, and the lag of its event loop
  host               text,
  slots              integer,
  running            integer     not null default 0,
  loop_lag           interval,
  -- when an operator asked it to finish what it runs and to end
  drain_asked_at     timestamptz,
  registered_at      timestamptz not null,
  heartbeat_at       timestamptz not null,
  primary key (namespace, worker_instance_id)
);

create index worker_version on ff.worker (code_version) where code_version is not null;

create type ff.worker_event_kind as enum (
  'registered', 'drain_asked', 'marked_dead', 'ttl_swept');

-- The history of workers. Heartbeats are not recorded.
create table ff.worker_event (
  worker_event_id    bigint               not null generated always as identity,
  namespace          text                 not null,
  worker_instance_id text                 not null,
  worker_id          text                 not null,
  kind               ff.worker_event_kind not null,
  occurred_at        timestamptz          not null,
  actor              text,
  reason             text,
  -- for a worker that left: its last heartbeat, and the code versions it served
  heartbeat_at       timestamptz,
  code_versions      text[],
  primary key (worker_event_id)
);

create index worker_event_version on ff.worker_event (heartbeat_at)
  where code_versions is not null;

-- The last claim of each worker instance, so that a repeated claim returns the same executions. The
-- key is the worker's name in its namespace; an empty namespace means a worker for all namespaces.
create table ff.claim_slot (
  partition_key      smallint    not null,
  namespace          text        not null,
  worker_instance_id text        not null,
  claim_id           uuid        not null,
  claimed_at         timestamptz not null,
  execution_ids      uuid[]      not null,
  primary key (partition_key, namespace, worker_instance_id)
-- The ids of a claim stay in the row, uncompressed, because compressing them would cost more than
-- it saves.
) with (fillfactor = 50, toast_tuple_target = 8160);
