-- Subscriptions: readers of the event log whose position is kept here.
--
-- One consumer at a time has the lease of a subscription. It reads events after the cursor. When it
-- acknowledges events, it stores the cursor after them. Every new lease raises the epoch, so that
-- an acknowledgement of an earlier holder is refused.
create table ff.subscription (
  namespace        text        not null,
  name             text        not null,
  -- which events it wants; null means all. A task may be a pattern with * and ?.
  kinds            text[],
  tasks            text[],
  lanes            text[],
  instance_tags    text[],
  -- the position: the cursors of all partitions, joined by slashes; every event before it was
  -- acknowledged
  cursor_text      text        not null,
  -- what the consumer does if the events after the cursor are gone
  on_expiry        text        not null,
  -- how much longer events are kept for it after they are due to be trimmed
  keep             interval    not null,
  holder_id        uuid,
  -- the consumer in words, for people
  holder_name      text,
  lease_expires_at timestamptz,
  epoch            bigint      not null default 0,
  -- the number of the last acknowledgement of this epoch: a repeat changes nothing
  ack_no           bigint      not null default 0,
  acked_count      bigint      not null default 0,
  acked_at         timestamptz,
  created_at       timestamptz not null,
  changed_at       timestamptz,
  changed_by       text,
  reason           text,
  -- only a webhook has the columns below; any worker may be its consumer, and posts the events
  webhook_id       uuid,
  url              text,
  -- the host and port of the URL, which a worker compares with its list of hosts
  host             text,
  -- HMAC-SHA256 needs the secret only as two blocks of 64 bytes
  inner_block      bytea,
  outer_block      bytea,
  -- whether the body has the detail of the event, such as the reason of a failure
  has_detail       boolean,
  -- failures since the last success; the next try is not before retry_at
  failure_count    integer     not null default 0,
  retry_at         timestamptz,
  -- the last answer of the receiver: an HTTP status, or the error
  answer           text,
  answered_at      timestamptz,
  disabled_at      timestamptz,
  primary key (namespace, name),
  constraint a_webhook_is_whole check (
    num_nulls(webhook_id, url, host, inner_block, outer_block, has_detail) in (0, 6)),
  constraint only_a_webhook_fails check (
    webhook_id is not null
    or (failure_count = 0 and num_nonnulls(retry_at, answer, answered_at, disabled_at) = 0)),
  constraint subscription_limits check (
    octet_length(name) between 1 and 256 and octet_length(holder_name) <= 256
    and keep between interval '0' and interval '30 days'),
  constraint subscription_policies check (on_expiry in ('stop', 'resume')),
  constraint a_lease_is_whole check (num_nulls(holder_id, holder_name, lease_expires_at) in (0, 3))
);
