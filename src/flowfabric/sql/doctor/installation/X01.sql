-- Confirmed writes are on disk, and this server accepts writes.
--
-- fsync, full_page_writes and synchronous_commit must not be off, for the server or for this
-- session. The PGOPTIONS of this process must not switch one of them off. synchronous_commit can
-- also be set elsewhere, and must not be off there: for this database or for all databases, for a
-- role that may use schema ff, or in a function of ff. No table of ff may be unlogged. If one of
-- these rules is broken, a crash of the server can undo a confirmed write. Then two workers can
-- get a lease on the same execution. A standby accepts no writes: run doctor on the primary.
--
-- Remedy:  alter system set fsync = on; alter role … reset synchronous_commit; and so on. If the
--          loss of the database does not matter, as in tests: doctor --throwaway.
select 'durability' as level,
       format('%s is off (%s)', s.name, coalesce(s.sourcefile, s.source)) as problem
from pg_catalog.pg_settings s
where s.name in ('fsync', 'full_page_writes') and s.setting = 'off'
union all
select 'durability', format('synchronous_commit is off for this session (%s)',
                            coalesce(s.sourcefile, s.source))
from pg_catalog.pg_settings s
where s.name = 'synchronous_commit' and s.setting = 'off'
  and s.source not in ('database', 'user', 'database user')
union all
select 'durability', format('%s%s', c.setting, coalesce(
         ' for ' || concat_ws(' in ', 'role ' || r.rolname, 'database ' || d.datname),
         ' for everybody'))
from pg_catalog.pg_db_role_setting s
cross join lateral unnest(s.setconfig) c(setting)
left join pg_catalog.pg_roles r on r.oid = s.setrole
left join pg_catalog.pg_database d on d.oid = s.setdatabase
left join pg_catalog.pg_namespace n on n.nspname = 'ff'
where lower(c.setting) in (
    'synchronous_commit=off', 'synchronous_commit=false', 'synchronous_commit=no',
    'synchronous_commit=0')
  and (s.setdatabase = 0 or d.datname = current_database())
  and (r.oid is null or n.oid is null or r.rolname = current_user
       or pg_catalog.has_schema_privilege(r.oid, n.oid, 'usage'))
union all
select 'durability', format('%s in the function %s', c.setting, p.oid::regprocedure)
from pg_catalog.pg_proc p
join pg_catalog.pg_namespace n on n.oid = p.pronamespace
cross join lateral unnest(p.proconfig) c(setting)
where n.nspname = 'ff' and c.setting in ('synchronous_commit=off', 'synchronous_commit=false')
union all
select 'durability', format('the table %s is unlogged: a crash empties it', c.oid::regclass)
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'ff' and c.relkind = 'r' and c.relpersistence <> 'p'
union all
select 'error', 'this server is a read-only standby: run doctor on its primary'
where pg_catalog.pg_is_in_recovery()
