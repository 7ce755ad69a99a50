-- Flows: graphs of executions, stored before any of them runs.
--
-- A member of a flow is an execution with a flow_id. An edge makes one member wait for another. The
-- edges into a member are in groups, and the member can run when all its groups are satisfied. Only
-- a transaction that has locked the downstream member writes its groups and edges. So two ends that
-- affect one member are applied one after the other, and no other lock is needed.

create type ff.flow_cancel_policy as enum ('cancel_all', 'cancel_pending', 'flow_only');

create table ff.flow (
  partition_key  smallint    not null,
  flow_id        uuid        not null,
  namespace      text        not null,
  flow_kind      text        not null,
  -- how often the graph changed; a caller that adds an edge passes the revision it has read
  graph_revision integer     not null default 0,
  node_count     integer     not null default 0,
  edge_count     integer     not null default 0,
  created_at     timestamptz not null,
  mutated_at     timestamptz not null,
  cancelled_at   timestamptz,
  cancel_policy  ff.flow_cancel_policy,
  cancel_reason  text,
  cancelled_by   text,
  -- the call that cancelled the flow, so that a repeat gets the same answer
  cancel_call_id uuid,
  -- when the first members were trimmed
  trimmed_at     timestamptz,
  tags           jsonb,
  creator        text,
  primary key (partition_key, flow_id),
  constraint flow_counts check (graph_revision >= 0 and node_count >= 0 and edge_count >= 0),
  constraint cancelled_by_a_policy check (
    (cancelled_at is null) = (cancel_policy is null)
    and (cancelled_at is not null or num_nonnulls(cancel_reason, cancelled_by, cancel_call_id) = 0))
) with (fillfactor = 80);

create type ff.dependency_kind as enum ('success_only');

create type ff.resolution as enum ('unsatisfied', 'satisfied', 'impossible');

-- One dependency. A staged edge counts in its group. An applied edge (applied_at) blocks its
-- downstream member until it is resolved. The row keeps the resolution, so that a second propagation
-- of the same end changes nothing.
create table ff.edge (
  partition_key    smallint           not null,
  flow_id          uuid               not null,
  edge_id          uuid               not null,
  upstream_id      uuid               not null,
  downstream_id    uuid               not null,
  group_no         smallint           not null default 0,
  kind             ff.dependency_kind not null default 'success_only',
  data_passing_ref text,
  created_at       timestamptz        not null,
  created_by       text               not null default 'engine',
  applied_at       timestamptz,
  resolution       ff.resolution,
  -- how the upstream member ended
  outcome          ff.outcome,
  resolved_at      timestamptz,
  -- the version of the upstream member when a replay of the downstream member reopened the edge;
  -- only a later end of the upstream member resolves the edge
  reopened_version integer,
  -- which result of the upstream member is kept for the downstream member: the version that the
  -- upstream member had at that success; null unless the upstream member was replayed
  kept_version     integer,
  primary key (partition_key, flow_id, edge_id),
  constraint not_to_itself check (upstream_id <> downstream_id),
  constraint resolution_iff_applied check ((resolution is null) = (applied_at is null)),
  constraint resolved_by_an_outcome check (
    case resolution
      when 'satisfied' then resolved_at is not null and outcome = 'success'
      when 'impossible' then resolved_at is not null
                             and outcome in ('failed', 'cancelled', 'expired', 'skipped')
      else num_nonnulls(resolved_at, outcome) = 0 end),
  constraint kept_of_a_success check (kept_version is null or resolution = 'satisfied'),
  constraint edge_limits check (group_no >= 0 and octet_length(data_passing_ref) <= 256)
) with (fillfactor = 80);

-- Edges that the end of an execution must still resolve.
create index edge_open on ff.edge (partition_key, upstream_id, downstream_id)
  where resolution = 'unsatisfied';

create index edge_upstream on ff.edge (partition_key, upstream_id);

create index edge_downstream on ff.edge (partition_key, downstream_id, group_no);

-- Edges with a kept result. If the upstream member succeeds again, its new result may replace the
-- kept result.
create index edge_kept on ff.edge (partition_key, upstream_id, downstream_id)
  where kept_version is not null;

-- Results of replayed members, kept for downstream members. There is one row for every end whose
-- result an edge still uses.
create table ff.kept_result (
  partition_key   smallint not null,
  execution_id    uuid     not null,
  version         integer  not null,
  result_encoding text,
  result          bytea,
  primary key (partition_key, execution_id, version)
);

create type ff.group_policy as enum ('all_of', 'any_of', 'quorum');

create type ff.on_satisfied as enum ('cancel_remaining', 'let_run');

create type ff.group_state as enum ('pending', 'satisfied', 'impossible');

-- Edges into one member that are decided together. `n` counts the staged edges. Once decided, the
-- state stays; only a replay opens the group again.
create table ff.edge_group (
  partition_key      smallint        not null,
  downstream_id      uuid            not null,
  group_no           smallint        not null default 0,
  flow_id            uuid            not null,
  policy             ff.group_policy not null default 'all_of',
  k                  integer,
  on_satisfied       ff.on_satisfied,
  n                  integer         not null default 0,
  succeeded          integer         not null default 0,
  failed             integer         not null default 0,
  skipped            integer         not null default 0,
  state              ff.group_state  not null default 'pending',
  fired_at           timestamptz,
  -- k and n at the time of the decision
  fired_k            integer,
  fired_n            integer,
  -- whether siblings that are no longer needed must still be cancelled
  cancel_pending     boolean         not null default false,
  cancel_members     uuid[]          not null default '{}',
  cancel_reason      text,
  cancel_enqueued_at timestamptz,
  primary key (partition_key, downstream_id, group_no),
  constraint policy_is_whole check (
    (policy = 'quorum') = (k is not null) and (policy = 'all_of') = (on_satisfied is null)
    and (k is null or k >= 1)),
  constraint group_counts check (
    succeeded >= 0 and failed >= 0 and skipped >= 0 and succeeded + failed + skipped <= n),
  constraint fired_iff_decided check (
    num_nonnulls(fired_at, fired_k, fired_n) = case when state = 'pending' then 0 else 3 end),
  constraint cancels_only_when_decided check (
    (not cancel_pending or state <> 'pending') and (cancel_pending or cancel_members = '{}')
    and (cancel_pending = (cancel_enqueued_at is not null)))
) with (fillfactor = 70);

create index edge_group_flow on ff.edge_group (partition_key, flow_id, downstream_id, group_no);

create index edge_group_cancel on ff.edge_group (partition_key, cancel_enqueued_at)
  where cancel_pending;

-- The backlog of a cancelled flow: one row for the flow, and one for each member that must still
-- end.
create table ff.cancel_backlog (
  partition_key smallint              not null,
  flow_id       uuid                  not null,
  policy        ff.flow_cancel_policy not null,
  requested_at  timestamptz           not null,
  requested_by  text,
  reason        text,
  -- the time from which a reconciler ends the members that are left
  due_at        timestamptz           not null,
  primary key (partition_key, flow_id),
  constraint flow_only_leaves_no_backlog check (policy <> 'flow_only')
);

create index cancel_backlog_due on ff.cancel_backlog (partition_key, due_at);

create table ff.cancel_backlog_member (
  partition_key smallint not null,
  flow_id       uuid     not null,
  execution_id  uuid     not null,
  primary key (partition_key, flow_id, execution_id)
);
