-- List the acts of operators and administrators, newest first. If p_namespace is null, list the
-- acts of all namespaces.
--
-- p_before is the id of the last act on the previous page. Null begins with the newest act.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   operator
drop function if exists ff.list_audit;
create function ff.list_audit(
  p_namespace text, p_before bigint default null, p_limit integer default 100)
returns table (audit_id bigint, occurred_at timestamptz, namespace text, actor text, act text,
               subject text, reason text, before text, after text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_operator('list_audit');
  perform ff._check_limit(p_limit);
  return query
  select a.audit_id, a.occurred_at, a.namespace, a.actor, a.act, a.subject, a.reason,
         a.before::text, a.after::text
  from ff.audit a
  where (p_namespace is null or a.namespace = p_namespace)
    and (p_before is null or a.audit_id < p_before)
  order by a.audit_id desc
  limit p_limit;
end;
$$;
