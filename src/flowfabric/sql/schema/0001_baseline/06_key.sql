-- An idempotency key stands for one submission. A repeat with the key gets the first execution.

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

-- Every row satisfies this predicate, and only the queries of ff.trim_keys contain it. Its only
-- purpose is to keep the planner from using this index to look up a key while the table is small.
create index idempotency_key_expiry on ff.idempotency_key (partition_key, expires_at)
  where expires_at > '-infinity';

-- Finds the key of an execution. As above, the predicate only keeps the planner from using this
-- index to look up a key.
create index idempotency_key_execution on ff.idempotency_key (partition_key, execution_id)
  where execution_id > '00000000-0000-0000-0000-000000000000';
