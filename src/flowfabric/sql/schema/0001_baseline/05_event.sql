-- Events. The transaction that makes a transition also writes its event.

-- A generation is one stay of a partition on one server. Transaction numbers and event ids rise
-- within a generation only, so events are ordered by generation first.
create table ff.event (
  partition_key      smallint      not null,
  version            integer       not null,
  attempt_index      integer,
  event_id           bigint        not null generated always as identity,
  generation         integer       not null default 0,
  xid                xid8          not null,
  execution_id       uuid          not null,
  occurred_at        timestamptz   not null,
  route_id           bigint,
  epoch              bigint,
  kind               ff.event_kind not null,
  outcome            ff.outcome,
  lease_id           uuid,
  flow_id            uuid,
  namespace          text          not null,
  worker_instance_id text,
  instance_tag       text,
  actor              text,
  detail             jsonb,
  primary key (partition_key, generation, xid, event_id)
) with (
  autovacuum_vacuum_insert_scale_factor = 0.1
);

create index event_history on ff.event (partition_key, execution_id, generation, event_id);

-- The present generation of a partition, and the node of the cluster that writes it. Without a row
-- the generation is 0. If the tables are not distributed, node_id is null, and usually there is no
-- row.
create table ff.event_generation (
  partition_key smallint primary key,
  generation    integer  not null,
  node_id       integer
);

-- Events outlive an execution that was trimmed early; due_at says when they are deleted. If a
-- subscription still needs them, due_at is put off, and first_due_at keeps the first time.
create table ff.event_trim (
  partition_key smallint    not null,
  due_at        timestamptz not null,
  execution_id  uuid        not null,
  first_due_at  timestamptz,
  primary key (partition_key, due_at, execution_id)
);

-- The highest event trimmed in a partition. A cursor before it has expired.
--
-- If a trim removed events that a subscription had not acknowledged, `losses` has the time of the
-- last such trim. The key is the namespace, a blank and the name of the subscription.
create table ff.trim_mark (
  partition_key smallint primary key,
  generation    integer  not null,
  xid           xid8     not null,
  losses        jsonb    not null default '{}'
);

-- Where the scan for executions to trim continues; null means at the first execution.
create table ff.trim_position (
  partition_key smallint primary key,
  execution_id  uuid
);

-- The id of this installation, which every cursor carries. A copy of the database has the same id.
insert into ff.meta (name, value)
values ('installation_id', replace(gen_random_uuid()::text, '-', ''));
