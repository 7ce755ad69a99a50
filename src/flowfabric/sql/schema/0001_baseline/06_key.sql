-- A key stands for one submission: the same key again is the first execution, not a second one.

create type ff.key_scope as enum ('window', 'unfinished');

create table ff.idempotency_key (
  partition_key smallint     not null,
  namespace     text         not null,
  key           text         not null,
  execution_id  uuid         not null,
  scope         ff.key_scope not null,
  fingerprint   bytea        not null,
  expires_at    timestamptz  not null,
  primary key (partition_key, namespace, key)
);

-- Partial only so that the planner cannot mistake it for a way to look a key up while the table is
-- small; whoever trims says the predicate.
create index idempotency_key_expiry on ff.idempotency_key (partition_key, expires_at)
  where expires_at > '-infinity';
