-- Tables of the HTTP server: tokens of its callers, and the audit of what operators did.

-- A token of the HTTP server. Only its holder knows the token; the table has its SHA-256.
create table ff.api_token (
  token_id       uuid        primary key,
  token_hash     bytea       not null unique,
  -- the first characters of the token, so that people recognise it
  prefix         text        not null,
  name           text        not null,
  scopes         text[]      not null,
  namespace      text        not null,
  created_at     timestamptz not null,
  created_by     text        not null,
  expires_at     timestamptz,
  last_used_at   timestamptz,
  revoked_at     timestamptz,
  revoked_by     text,
  revoked_reason text,
  constraint token_hash_is_sha256 check (octet_length(token_hash) = 32),
  constraint a_token_has_a_scope check (cardinality(scopes) > 0)
);

create index api_token_namespace on ff.api_token (namespace, token_id);

-- One act of an operator or an administrator, written by the transaction of the act.
create table ff.audit (
  audit_id    bigint      generated always as identity primary key,
  occurred_at timestamptz not null,
  -- null if the act concerned all namespaces
  namespace   text,
  actor       text        not null,
  -- the name of the function that acted
  act         text        not null,
  subject     text,
  reason      text,
  before      jsonb,
  after       jsonb
);

create index audit_namespace on ff.audit (namespace, audit_id);
