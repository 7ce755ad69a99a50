-- List tasks in byte order of their names. A task is listed if an app has registered it, or if it
-- has a route. Clients register a route before they submit the task, or before they declare a
-- schedule or a hook for it.
--
-- p_after is the last name of the previous page. If p_namespace is null, the tasks of all
-- namespaces are listed. Each name then occurs once, and is_registered and is_limited are true if
-- they are true in at least one namespace.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_tasks;
create function ff.list_tasks(
  p_namespace text,
  p_limit     integer default 1000,
  p_after     text default null
)
returns table (task text, is_registered boolean, is_limited boolean)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  return query
  select k.task collate "C", bool_or(k.is_registered), bool_or(k.is_limited)
  from (
    select r.task, false as is_registered, false as is_limited from ff.route r
    where p_namespace is null or r.namespace = p_namespace
    union all
    select t.task, true, t.limits <> '[]' from ff.task t
    where p_namespace is null or t.namespace = p_namespace) k
  where p_after is null or k.task collate "C" > p_after
  group by 1
  order by 1 limit p_limit;
end;
$$;
