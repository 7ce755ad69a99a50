-- Events: each is written by the transaction that made the transition.

create table ff.event (
  partition_key      smallint      not null,
  version            integer       not null,
  attempt_index      integer,
  event_id           bigint        not null generated always as identity,
  -- rises when the partition moves to another node; xids are comparable only within a generation
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
  primary key (partition_key, xid, event_id)
) with (
  autovacuum_vacuum_insert_scale_factor = 0.1
);

create index event_history on ff.event (partition_key, execution_id, event_id);

-- Events outlive an execution that was trimmed early; due_at says when they are deleted.
create table ff.event_trim (
  partition_key smallint    not null,
  due_at        timestamptz not null,
  execution_id  uuid        not null,
  primary key (partition_key, due_at, execution_id)
);
