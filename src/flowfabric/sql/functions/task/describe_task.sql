-- Describe a task as its app registered it: its version, its limits, and the JSON Schemas of its
-- arguments, of its result and of the signals that it takes. `lanes` are the lanes that have a
-- route for the task.
--
-- Returns no row if no app has registered the task. If p_namespace is null, returns one row for
-- each namespace in which the task is registered.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.describe_task;
create function ff.describe_task(p_namespace text, p_task text)
returns table (
  namespace     text,
  task          text,
  version       text,
  arguments     jsonb,
  result        jsonb,
  limits        jsonb,
  lanes         text[],
  app_version   integer[],
  registered_at timestamptz,
  changed_at    timestamptz,
  signals       jsonb
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  return query
  select t.namespace, t.task, t.version, t.arguments, t.result, t.limits,
         array(select distinct r.lane collate "C" from ff.route r
               where r.namespace = t.namespace and r.task = t.task and r.code_version is null
               order by 1),
         t.app_version, t.registered_at, t.changed_at,
         (select jsonb_object_agg(d.name, s.document)
          from jsonb_each_text(t.signals) d(name, schema_id)
          left join ff.signal_schema s on s.schema_id = d.schema_id::bigint)
  from ff.task t
  where t.task = p_task and (p_namespace is null or t.namespace = p_namespace)
  order by t.namespace collate "C";
end;
$$;
