-- Admission: how many executions may run at the same time, how many may start in a window, and how
-- much they may spend.
--
-- A quota limits executions. A quota with a key has one gate per value of the key. A gate counts
-- the leased executions that name it. A budget limits amounts that running executions report. A
-- budget is a gate itself: while it is shut, no execution under it starts.
--
-- The claim checks the gates of its candidates. An execution that a gate refuses waits in a line,
-- which belongs to its route and that gate. Claims do not read closed lines. The end of a lease
-- inserts a release and locks nothing. Claims subtract releases from the gates and open lines.

create type ff.overflow as enum ('queue', 'refuse');

-- What happens when usage would exceed a hard limit of a budget.
create type ff.on_exceed as enum ('fail', 'suspend', 'warn');

create type ff.budget_period as enum ('hour', 'day', 'week', 'month', 'interval');

-- The limits that code declared last. A deleted quota limits nothing; its gates stay, because
-- executions name them.
create table ff.quota (
  namespace   text        not null,
  quota       text        not null,
  is_keyed    boolean     not null,
  concurrency integer,
  rate        integer,
  rate_window interval,
  overflow    ff.overflow not null default 'queue',
  declared_at timestamptz not null,
  declared_by text,
  primary key (namespace, quota),
  constraint quota_has_a_name check (
    quota ~ E'^[^\x01-\x20\x7f]+$' and octet_length(quota) <= 256),
  constraint quota_limits check (concurrency >= 1 and rate >= 1 and rate_window > interval '0'),
  constraint rate_has_a_window check ((rate is null) = (rate_window is null))
);

-- The limits that an operator set for one key, or for all keys (the key ''). They override the
-- declared limits until they are lifted.
create table ff.quota_change (
  namespace   text        not null,
  quota       text        not null,
  key         text        not null,
  concurrency integer,
  rate        integer,
  rate_window interval,
  reason      text,
  changed_by  text,
  changed_at  timestamptz not null,
  primary key (namespace, quota, key)
);

-- One counter of a quota. max_running and the rate are the limits in force; with several
-- partitions, they are this partition's share. running counts the leases, the slots in gate_ticket,
-- and the slots in gate_release, which were given back and are not subtracted yet.
create table ff.gate (
  partition_key smallint not null,
  -- 62-bit hash of namespace, quota and key
  gate_id       bigint   not null,
  namespace     text     not null,
  quota         text     not null,
  key           text     not null,
  is_refusing   boolean  not null default false,
  max_running   integer,
  running       integer  not null default 0,
  rate          integer,
  rate_window   interval,
  -- starts in each of the last 62 slices, and the newest slice; a slice is a sixtieth of the window
  slices        integer[],
  slice_base    bigint   not null default 0,
  -- when the rate has room again; set while an execution waits for it
  opens_at      timestamptz,
  -- when a caller of ff.check_admission found no room in this partition; null again once shares are
  -- balanced
  wanted_at     timestamptz,
  -- the execution for which one slot is kept free while it waits for another of its gates
  reserved_for  uuid,
  -- the execution for which one start within the window of the rate is kept free
  start_for     uuid,
  primary key (partition_key, gate_id),
  constraint gate_id_is_62_bits check (gate_id between 0 and 4611686018427387903)
) with (fillfactor = 20);

create index gate_wanted on ff.gate (partition_key, gate_id) where wanted_at is not null;
create index gate_reserved on ff.gate (partition_key, gate_id)
  where num_nonnulls(reserved_for, start_for) > 0;
create unique index gate_key on ff.gate (partition_key, namespace, quota, key);
create index gate_opens on ff.gate (partition_key, opens_at) where opens_at is not null;

-- The share of a gate's limits that each of several partitions has. Written only under the lock of
-- the quota. The sum of the shares is never above the limit.
create table ff.gate_share (
  gate_id     bigint   not null,
  -- the number of the partition
  share_no    smallint not null,
  namespace   text     not null,
  quota       text     not null,
  key         text     not null,
  concurrency integer,
  rate        integer,
  primary key (gate_id, share_no),
  constraint shares_are_not_negative check (concurrency >= 0 and rate >= 0)
);

create index gate_share_quota on ff.gate_share (namespace, quota, key);

-- Slots that were given back and are not yet subtracted from gate.running. Rows are only inserted
-- and deleted, never updated.
create table ff.gate_release (
  partition_key smallint not null,
  gate_id       bigint   not null,
  slots         integer  not null
);

-- The table has no primary key. Without this setting, Citus could not move it to another node.
alter table ff.gate_release replica identity full;

create index gate_release_gate on ff.gate_release (partition_key, gate_id);

-- A ticket: a slot that a caller outside an execution has taken (ff.check_admission), until it
-- releases the slot or its time is over.
create table ff.gate_ticket (
  partition_key smallint    not null,
  gate_id       bigint      not null,
  ticket_id     uuid        not null,
  taken_at      timestamptz not null,
  expires_at    timestamptz not null,
  primary key (partition_key, gate_id, ticket_id)
);

create index gate_ticket_expiry on ff.gate_ticket (partition_key, expires_at);

-- The executions of one route that one gate or budget refused. Claims read open lines only. If the
-- gate has a free slot, but its rate has no room, they read only executions that resume.
create table ff.line (
  partition_key smallint    not null,
  route_id      bigint      not null,
  gate_id       bigint      not null,
  is_open       boolean     not null,
  served_at     timestamptz not null,
  primary key (partition_key, route_id, gate_id)
) with (fillfactor = 50);

create index line_open on ff.line (partition_key, route_id, served_at) where is_open;
create index line_gate on ff.line (partition_key, gate_id);

-- A budget of one key. Amounts are integers.
create table ff.budget (
  -- hash of namespace, budget and key; higher than all ids of the gates of quotas
  budget_id             bigint       primary key,
  namespace             text         not null,
  budget                text         not null,
  key                   text         not null,
  on_exceed             ff.on_exceed not null,
  period                ff.budget_period,
  period_zone           text,
  period_length         interval,
  -- the number of the current period
  period_no             integer      not null default 0,
  period_started_at     timestamptz  not null,
  next_reset_at         timestamptz,
  -- whether a dimension has no room left; while it is true, no execution under the budget starts
  is_shut               boolean      not null default false,
  breach_count          bigint       not null default 0,
  soft_breach_count     bigint       not null default 0,
  last_breach_at        timestamptz,
  last_breach_dimension text,
  created_at            timestamptz  not null,
  created_by            text,
  -- the last operator who raised, lifted or reset it
  changed_by            text,
  changed_at            timestamptz,
  reason                text,
  constraint budget_id_is_upper check (budget_id >= 4611686018427387904),
  constraint budget_has_a_name check (
    budget ~ E'^[^\x01-\x20\x7f]+$' and octet_length(budget) <= 256),
  constraint interval_has_a_length check (
    (period_length is not null) = (period is not null and period = 'interval'))
);

create unique index budget_key on ff.budget (namespace, budget, key);
create index budget_shut on ff.budget (budget_id) where is_shut;
create index budget_reset on ff.budget (next_reset_at) where next_reset_at is not null;

-- One dimension of a budget: its limits (null means none) and what was used in the current period.
create table ff.budget_dimension (
  budget_id     bigint  not null,
  dimension     text    not null,
  declared_hard bigint,
  declared_soft bigint,
  -- the hard limit that an operator set; it overrides the declared limit until it is lifted
  raised_hard   bigint,
  usage         bigint  not null default 0,
  -- the amounts that the hard limit refused in this period
  refused       bigint  not null default 0,
  primary key (budget_id, dimension),
  constraint amounts_are_positive check (
    declared_hard >= 1 and declared_soft >= 1 and raised_hard >= 1 and usage >= 0 and refused >= 0),
  constraint dimension_has_a_name check (dimension ~ E'^[^\x01-\x20\x7f]{1,64}$')
);

-- Amounts that ff.record_spend added, so that ff.release_budget can take them back in the same
-- period, within 30 days after the last spend.
create table ff.budget_ledger (
  budget_id    bigint      not null,
  execution_id uuid        not null,
  dimension    text        not null,
  period_no    integer     not null,
  amount       bigint      not null,
  spent_at     timestamptz not null,
  primary key (budget_id, execution_id, dimension)
);

create index budget_ledger_period on ff.budget_ledger (budget_id, period_no);
create index budget_ledger_spent on ff.budget_ledger (spent_at);

-- Reports that were applied, kept for 24 hours by the key that the caller gave.
create table ff.budget_report (
  budget_id  bigint      not null,
  dedup_key  text        not null,
  outcome    text        not null,
  expires_at timestamptz not null,
  primary key (budget_id, dedup_key)
);

create index budget_report_expiry on ff.budget_report (expires_at);

-- This index contains attempt_state, so that a claim quickly finds the executions in a long line
-- that resume. A separate index for them would make every call 5 % slower.
create index execution_line on ff.execution
  (partition_key, line_id, route_id, rank, order_at, execution_id, attempt_state)
  where line_id is not null;

-- Fair order: executions with a fair key take turns by key. ff.fair_key stores the last position of
-- each key. ff.fair_lane stores the position that each lane has reached. A position is a value of
-- order_at. Each partition and priority has its own positions.
create table ff.fair_key (
  partition_key smallint    not null,
  namespace     text        not null,
  lane          text        not null,
  rank          smallint    not null,
  key           text        not null,
  last_at       timestamptz not null,
  primary key (partition_key, namespace, lane, rank, key)
) with (fillfactor = 50);

create table ff.fair_lane (
  partition_key smallint    not null,
  namespace     text        not null,
  lane          text        not null,
  rank          smallint    not null,
  served_at     timestamptz not null,
  primary key (partition_key, namespace, lane, rank)
) with (fillfactor = 20);
