-- The registry of tasks: what workers and submitters know about the tasks of their apps. Submits,
-- forms and dashboards read it.

create table ff.task (
  namespace     text        not null,
  task          text        not null,
  -- the version of the app that registered it last; an older app changes nothing
  app_version   integer[]   not null,
  -- `@app.task(version=…)`
  version       text,
  -- JSON Schema of the arguments by name, and of the result; null if they are unknown
  arguments     jsonb,
  result        jsonb,
  -- one object per limit: kind (quota or budget), name, is_keyed, and the argument that is the key
  limits        jsonb       not null default '[]',
  -- the signals that the task takes: an object that maps each name to the id of the schema of its
  -- values, or to null if any value is allowed. The column is null if no signals are declared
  signals       jsonb,
  registered_at timestamptz not null,
  changed_at    timestamptz not null,
  primary key (namespace, task),
  constraint limits_are_a_list check (jsonb_typeof(limits) = 'array')
);
