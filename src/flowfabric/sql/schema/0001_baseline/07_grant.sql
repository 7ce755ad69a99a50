-- Grants. Each grant reserves one execution for one worker.

create type ff.grant_kind as enum ('claim', 'resume', 'reclaim');

-- The right of one worker, for a short time, to claim one execution. Only the worker knows the key;
-- the table stores its hash.
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

-- The index is partial for the same reason as idempotency_key_expiry: the planner must not use it
-- to look up a grant.
create index grant_expiry on ff.grant (partition_key, expires_at)
  where expires_at > '-infinity';
