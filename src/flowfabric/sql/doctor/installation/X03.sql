-- Every role has the permissions it needs, and no more.
--
-- PUBLIC may neither call functions nor access tables and views. Functions that are `security
-- definer` belong to the owner of the tables. These functions look up each name in pg_catalog
-- first, so that no object of a caller can replace a system function. The roles flowfabric_app and
-- flowfabric_operator need not exist. If they exist, they own nothing, and may neither call private
-- functions nor write to tables. flowfabric_operator may call all public functions and read all
-- views. flowfabric_app may call all public functions except the functions for operators, and may
-- read only the view ff.installation. The role that runs doctor must be able to read the tables and
-- to call ff.now, because otherwise doctor cannot check the data.
--
-- Remedy:  As the owner of schema ff: flowfabric db migrate, which corrects the permissions. If the
--          role of doctor lacks permissions: run doctor as the owner of schema ff, as a superuser,
--          or as a member of both pg_read_all_data and flowfabric_app.
select 'error' as level, format('PUBLIC may call %s', p.oid::regprocedure) as problem
from pg_catalog.pg_proc p
join pg_catalog.pg_namespace n on n.oid = p.pronamespace
where n.nspname = 'ff' and pg_catalog.has_function_privilege('public', p.oid, 'execute')
union all
select 'error', format('PUBLIC may access %s', c.oid::regclass)
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'ff' and c.relkind in ('r', 'v')
  and pg_catalog.has_table_privilege('public', c.oid, 'select, insert, update, delete, truncate')
union all
select 'error', format('%s belongs to %s, the tables to %s', p.oid::regprocedure,
                       p.proowner::regrole, t.relowner::regrole)
from pg_catalog.pg_proc p
join pg_catalog.pg_namespace n on n.oid = p.pronamespace
join pg_catalog.pg_class t on t.relnamespace = n.oid and t.relname = 'execution'
where n.nspname = 'ff' and p.prosecdef and p.proowner <> t.relowner
union all
select 'error', format('%s runs as its owner and finds the caller''s names first', p.oid::regprocedure)
from pg_catalog.pg_proc p
join pg_catalog.pg_namespace n on n.oid = p.pronamespace
where n.nspname = 'ff' and p.prosecdef
  and not coalesce(p.proconfig, '{}') @> '{"search_path=pg_catalog, pg_temp"}'
union all
select 'error', format('%s may call the private %s', r.rolname, p.oid::regprocedure)
from pg_catalog.pg_roles r
join pg_catalog.pg_namespace n on n.nspname = 'ff'
join pg_catalog.pg_proc p on p.pronamespace = n.oid and starts_with(p.proname, '_')
where r.rolname in ('flowfabric_app', 'flowfabric_operator') and not r.rolsuper
  and pg_catalog.has_function_privilege(r.oid, p.oid, 'execute')
union all
select 'error', format('%s %s', r.rolname, x.problem)
from pg_catalog.pg_roles r
join pg_catalog.pg_namespace n on n.nspname = 'ff'
cross join lateral (
  select 'may not use schema ff' as problem
  where not pg_catalog.has_schema_privilege(r.oid, n.oid, 'usage')
  union all
  select 'owns ' || c.oid::regclass
  from pg_catalog.pg_class c where c.relnamespace = n.oid and c.relowner = r.oid
  union all
  select 'owns ' || p.oid::regprocedure
  from pg_catalog.pg_proc p where p.pronamespace = n.oid and p.proowner = r.oid
  union all
  select 'may not call ' || p.oid::regprocedure
  from pg_catalog.pg_proc p
  where p.pronamespace = n.oid and not starts_with(p.proname, '_')
    and (r.rolname = 'flowfabric_operator' or p.proname not in (
      'add_webhook', 'count_waitpoints', 'create_api_token', 'deliver_approval_signal',
      'enable_webhook', 'expire_worker_leases', 'grant_namespace', 'list_api_tokens', 'list_audit',
      'list_hmac_keys', 'list_namespace_grants', 'list_webhooks', 'raise_partitions',
      'read_waitpoint_token', 'revoke_api_token', 'revoke_namespace', 'rotate_hmac_key',
      'seed_hmac_key', 'trim_retention'))
    and not pg_catalog.has_function_privilege(r.oid, p.oid, 'execute')
  union all
  select 'may not read ' || c.oid::regclass
  from pg_catalog.pg_class c
  where c.relnamespace = n.oid and c.relkind = 'v'
    and (r.rolname = 'flowfabric_operator' or c.relname = 'installation')
    and not pg_catalog.has_table_privilege(r.oid, c.oid, 'select')
  union all
  select 'may read ' || c.oid::regclass
  from pg_catalog.pg_class c
  where c.relnamespace = n.oid and c.relkind in ('r', 'v') and r.rolname = 'flowfabric_app'
    and c.relname <> 'installation' and pg_catalog.has_table_privilege(r.oid, c.oid, 'select')
  union all
  select 'may write to ' || c.oid::regclass
  from pg_catalog.pg_class c
  where c.relnamespace = n.oid and c.relkind = 'r'
    and pg_catalog.has_table_privilege(r.oid, c.oid, 'insert, update, delete, truncate')
) x
where r.rolname in ('flowfabric_app', 'flowfabric_operator') and not r.rolsuper
union all
select 'blind', format('%s may not read ff.%s', current_user, c.relname)
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'ff' and c.relkind = 'r'
  and not (pg_catalog.has_schema_privilege(n.oid, 'usage')
           and pg_catalog.has_table_privilege(c.oid, 'select'))
union all
select 'blind', format('%s may not use schema ff', current_user)
from pg_catalog.pg_namespace n
where n.nspname = 'ff' and not pg_catalog.has_schema_privilege(n.oid, 'usage')
union all
select 'blind', format('%s may not call ff.now', current_user)
from pg_catalog.pg_proc p
join pg_catalog.pg_namespace n on n.oid = p.pronamespace
where n.nspname = 'ff' and p.proname = 'now'
  and not pg_catalog.has_function_privilege(p.oid, 'execute')
