-- Lanes and routes. Both tables are small, and each row is registered once.
--
-- A lane is a named queue inside a namespace. It can be paused, drained and limited separately. A
-- route is one combination of namespace, lane, task, capabilities and code version. Its id is a
-- hash of these values. Workers claim by routes.

create type ff.lane_state as enum ('active', 'paused', 'draining', 'disabled');

create table ff.lane (
  namespace     text          not null,
  lane          text          not null,
  state         ff.lane_state not null default 'active',
  resumes_at    timestamptz,
  -- how long executions stay after their end, unless their policy says otherwise
  retention     interval,
  -- the options that code declared, and the options that an operator set (ff.set_lane_options); the
  -- operator's options override the others
  declared      jsonb,
  options       jsonb,
  -- copied from the options in force: the gate of the lane's limit, and the weights of fair keys
  gate_id       bigint,
  weights       jsonb,
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
  -- the code version that recorded the steps of the executions on this route; null before the first
  -- step
  code_version  text,
  -- whether ff.task has limits for the task; if so, a submit must name each limit, with its key
  is_limited    boolean     not null default false,
  registered_at timestamptz not null,
  constraint route_id_is_63_bits check (route_id >= 0),
  -- The id alone tells whether a route has a code version; an index of executions uses this.
  constraint upper_ids_have_a_version check (
    (code_version is not null) = (route_id >= 4611686018427387904))
);

-- A claim finds routes by its namespace and the tasks of its worker. It does not read routes of
-- past versions or of other namespaces.
create index route_task on ff.route (task, namespace, lane) where code_version is null;
create index route_version on ff.route (task, code_version, namespace)
  where code_version is not null;
create index route_lane on ff.route (namespace, lane);
