-- Signals, and the suspensions of executions that wait for them.
--
-- A handler that waits stores a row of kind `wait` in ff.step. A signal is stored whether or not a
-- wait is open for it. Only one wait can take the signal, and only while the execution is leased.
--
-- The call that stores a signal also wakes the execution, if the call can lock the execution.
-- Otherwise the call leaves a row in ff.signal_inbox, and ff.notice_signals wakes the execution
-- later.

-- The types of values that waits and tasks have declared, as JSON Schema. The id is a hash of the
-- document.
create table ff.signal_schema (
  schema_id     bigint      primary key,
  document      jsonb       not null,
  registered_at timestamptz not null
);


create table ff.signal (
  partition_key    smallint    not null,
  execution_id     uuid        not null,
  signal_id        uuid        not null,
  -- the name that a wait asks for
  name             text        not null,
  -- the waitpoint whose token it was sent with; null if it was sent by name
  waitpoint_id     uuid,
  category         text,
  source_type      text        not null,
  source_identity  text,
  correlation_id   text,
  -- a second signal with this key to the same name or waitpoint is a duplicate
  dedup_key        text,
  payload          bytea,
  payload_encoding text,
  accepted_at      timestamptz not null,
  -- when it was seen under the lock of the execution; waits take signals in the order of this time
  noticed_at       timestamptz,
  -- what its delivery did: null until it is noticed
  effect           text,
  -- when a wait took it, and which wait. A taken signal without a wait is spent.
  taken_at         timestamptz,
  wait_name        text,
  wait_occurrence  integer,
  -- the waitpoint that it answered, if it was sent by name
  answered_id      uuid,
  -- the generation of the partition (see ff.event), and the transaction that stored it: the feed of
  -- signals is read by snapshots
  generation       integer     not null default 0,
  xid              xid8        not null,
  primary key (partition_key, execution_id, signal_id),
  constraint signal_limits check (
    octet_length(name) between 1 and 256 and octet_length(payload) <= 65536),
  constraint only_a_taken_signal_has_a_wait check (wait_name is null or taken_at is not null)
) with (
  autovacuum_vacuum_insert_scale_factor = 0.1
);

-- The untaken signals of an execution, in the order in which waits take them.
create index signal_untaken on ff.signal
  (partition_key, execution_id, name, noticed_at, signal_id) where taken_at is null;

create index signal_waitpoint on ff.signal
  (partition_key, execution_id, waitpoint_id, noticed_at, signal_id)
  where waitpoint_id is not null and taken_at is null;

create unique index signal_dedup on ff.signal
  (partition_key, execution_id, name, waitpoint_id, dedup_key) nulls not distinct
  where dedup_key is not null;

create index signal_feed_order on ff.signal (partition_key, generation, xid);

-- An approver answers once.
create unique index signal_approval on ff.signal (partition_key, execution_id, waitpoint_id)
  where category = 'approval';


-- Signals that were stored without the lock of their execution.
create table ff.signal_inbox (
  partition_key smallint    not null,
  execution_id  uuid        not null,
  signal_id     uuid        not null,
  stored_at     timestamptz not null,
  primary key (partition_key, execution_id, signal_id)
) with (
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 1000
);


-- One row per suspension. An execution has at most one open suspension; closed suspensions stay as
-- its history.
create table ff.suspension (
  partition_key     smallint    not null,
  suspension_id     uuid        not null,
  execution_id      uuid        not null,
  attempt_index     integer     not null,
  -- the lease that was given up
  lease_id          uuid        not null,
  -- the waits, each a row of ff.step; the first one that is ready wakes the execution
  wait_names        text[]      not null,
  wait_occurrences  integer[]   not null,
  reason_code       text        not null,
  suspended_at      timestamptz not null,
  timeout_at        timestamptz,
  on_timeout        text        not null,
  -- how long the execution is delayed after it was woken by a signal
  resume_delay      interval,
  -- a text that the holder left for people, for example where the handler continues
  continuation      text,
  closed_at         timestamptz,
  close_reason      text,
  -- what woke the execution
  woken_by          jsonb,
  primary key (partition_key, suspension_id),
  constraint closed_for_a_reason check ((closed_at is null) = (close_reason is null))
);

create unique index suspension_open on ff.suspension (partition_key, execution_id)
  where closed_at is null;

create index suspension_timeout on ff.suspension (partition_key, timeout_at)
  where closed_at is null;

create index suspension_since on ff.suspension (partition_key, suspended_at, execution_id)
  where closed_at is null;

create index suspension_execution on ff.suspension (partition_key, execution_id, suspended_at);
