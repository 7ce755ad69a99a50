-- Waitpoints: addresses for answers. A handler hands them out before it waits.
--
-- The token of a waitpoint is its whole address, signed with a key of this database. The token is
-- never stored, because the database can sign it again from the row.
create table ff.waitpoint (
  partition_key   smallint    not null,
  execution_id    uuid        not null,
  waitpoint_id    uuid        not null,
  key             text        not null,
  attempt_index   integer     not null,
  -- the key that signs its token
  kid             text        not null,
  -- the step that records it; a replay that deletes this step also closes the waitpoint
  step_name       text,
  step_occurrence integer,
  created_at      timestamptz not null,
  -- when a wait for it was first opened; before that it may expire
  activated_at    timestamptz,
  expires_at      timestamptz,
  closed_at       timestamptz,
  close_reason    text,
  -- the approval that it belongs to; its key is then the approver who has the token
  approval_id     uuid,
  -- the type of the answer, once a wait has declared it
  schema_id       bigint,
  primary key (partition_key, execution_id, waitpoint_id),
  constraint waitpoint_limits check (octet_length(key) between 1 and 256),
  constraint waitpoint_closed_for_a_reason check ((closed_at is null) = (close_reason is null))
);

create index waitpoint_open on ff.waitpoint (partition_key, execution_id, key, waitpoint_id)
  where closed_at is null;

create index waitpoint_expiry on ff.waitpoint (partition_key, expires_at)
  where closed_at is null and activated_at is null;

-- The open approvals, longest open first. All waitpoints of an approval have the same created_at.
create index waitpoint_approval on ff.waitpoint (partition_key, created_at, approval_id)
  where closed_at is null and approval_id is not null;


-- Approvals: a question to several approvers. Each of them has a waitpoint, which takes one answer.
create table ff.approval (
  partition_key    smallint    not null,
  execution_id     uuid        not null,
  approval_id      uuid        not null,
  question         text        not null,
  -- what the approvers have to know, and how it is encoded
  details          bytea,
  details_encoding text,
  -- this many approvals grant it
  need_count       integer     not null,
  -- this many rejections deny it
  deny_count       integer     not null,
  created_at       timestamptz not null,
  primary key (partition_key, execution_id, approval_id),
  constraint approval_limits check (
    octet_length(question) between 1 and 1024 and octet_length(details) <= 65536
    and need_count >= 1 and deny_count >= 1)
);


-- The keys that sign tokens. HMAC-SHA256 needs the key only as two blocks of 64 bytes.
create table ff.hmac_key (
  kid          text        primary key,
  inner_block  bytea       not null,
  outer_block  bytea       not null,
  is_active    boolean     not null,
  -- null for the key that the migration makes
  created_at   timestamptz,
  -- when an inactive key stops verifying tokens
  expires_at   timestamptz,
  constraint hmac_key_shape check (
    kid ~ '^[A-Za-z0-9._-]{1,32}$' and octet_length(inner_block) = 64
    and octet_length(outer_block) = 64 and is_active = (expires_at is null))
);

create unique index hmac_key_active on ff.hmac_key (is_active) where is_active;

-- The first key. Its secret is made here, so that no parameter and no log contains it.
do $$
declare
  v_secret constant bytea := sha256(
    uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
  v_inner  bytea := decode(repeat('36', 64), 'hex');
  v_outer  bytea := decode(repeat('5c', 64), 'hex');
begin
  for i in 0..31 loop
    v_inner := set_byte(v_inner, i, get_byte(v_secret, i) # 54);
    v_outer := set_byte(v_outer, i, get_byte(v_secret, i) # 92);
  end loop;
  insert into ff.hmac_key (kid, inner_block, outer_block, is_active)
  values ('k1', v_inner, v_outer, true);
end;
$$;
