-- Hooks: tasks that the end of an execution submits.

-- Which ends submit a hook: `failure` is every end except success and cancellation, `end` is every
-- end.
create type ff.hook_kind as enum ('success', 'failure', 'cancel', 'end');

-- A hook of one task, as workers and submitters declared it. The transaction that ends an execution
-- of the task stores one execution of the hook. A removed hook stays, so that an older version of
-- the app cannot bring it back.
create table ff.hook (
  namespace   text         not null,
  -- the task whose ends submit the hook
  task        text         not null,
  -- the task that the hook submits
  name        text         not null,
  kind        ff.hook_kind not null,
  -- the version of the app that declared or removed it last
  version     integer[]    not null,
  route_id    bigint       not null,
  priority    integer      not null default 0,
  -- the options that submit_executions takes
  options     jsonb,
  declared_at timestamptz  not null,
  removed_at  timestamptz,
  primary key (namespace, task, name),
  constraint a_hook_is_another_task check (name <> task)
);

-- Every end looks here. If no task has hooks, the index is empty and costs almost nothing.
create index hook_in_force on ff.hook (namespace, task) where removed_at is null;
create index hook_of_success on ff.hook (namespace, task)
  where removed_at is null and kind in ('success', 'end');

-- Finds out whether a task is a hook. Hooks have no hooks themselves.
create index hook_name on ff.hook (namespace, name);

-- The secret from which the ids of hooks are derived. No role may read ff.meta.
insert into ff.meta (name, value)
values ('hook_secret', encode(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
                              'hex'));
