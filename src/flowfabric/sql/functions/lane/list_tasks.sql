-- List the names of the tasks that have a route, in byte order: those that were submitted or that a
-- schedule names.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Replay:   a read
-- Rights:   app
drop function if exists ff.list_tasks;
create function ff.list_tasks(p_namespace text, p_limit integer default 1000)
returns table (task text)
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
  select distinct r.task collate "C" from ff.route r
  where p_namespace is null or r.namespace = p_namespace
  order by 1 limit p_limit;
end;
$$;
