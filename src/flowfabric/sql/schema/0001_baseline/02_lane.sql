-- A lane is a line of work inside a namespace: it can be paused, drained and bounded by itself.
-- A route is what a claim looks for: one combination of namespace, lane, task, capabilities and code
-- version, with a hash of them as its id. Both are small, and registered once.

create type ff.lane_state as enum ('active', 'paused', 'draining', 'disabled');

create table ff.lane (
  namespace     text          not null,
  lane          text          not null,
  state         ff.lane_state not null default 'active',
  resumes_at    timestamptz,
  -- how long executions stay after their end, unless they say so themselves
  retention     interval,
  registered_at timestamptz   not null,
  registered_by text          not null,
  changed_at    timestamptz,
  changed_by    text,
  reason        text,
  primary key (namespace, lane),
  constraint lane_is_short_printable_ascii check (lane ~ '^[ -~]{1,64}$'),
  constraint resumes_only_when_paused check (state = 'paused' or resumes_at is null)
);

create table ff.route (
  route_id      bigint      primary key,
  namespace     text        not null,
  lane          text        not null,
  task          text        not null,
  capabilities  text[]      not null,
  -- the version of the code that recorded steps; null for what has none
  code_version  text,
  registered_at timestamptz not null,
  constraint route_id_is_63_bits check (route_id >= 0)
);

-- A worker knows its tasks; a claim finds its routes through them.
create index route_task on ff.route (task, lane);
create index route_lane on ff.route (namespace, lane);
