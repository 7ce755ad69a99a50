-- The server has free resources and cleans up.
--
-- Autovacuum is on, for the server and for each table of ff, and keeps up with freezing rows. No
-- transaction has been open for more than 10 minutes, and no replication slot holds back more than
-- 10 million transactions. (Old transactions and such slots keep dead rows from being removed.) At
-- most 80 % of the connections are in use. The clocks of this machine and of the server differ by
-- at most 2 s.
--
-- Remedy:  For autovacuum: alter system set autovacuum = on. For an old transaction: end it
--          (pg_terminate_backend). For a replication slot: drop it. For connections: raise
--          max_connections, or use a pooler. For the clocks: run a time service.
select 'warning' as level, 'autovacuum is off' as problem
from pg_catalog.pg_settings s
where s.name in ('autovacuum', 'track_counts') and s.setting = 'off'
union all
select 'warning', format('autovacuum is off for %s', c.oid::regclass)
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'ff' and c.relkind = 'r'
  and c.reloptions && array['autovacuum_enabled=off', 'autovacuum_enabled=false']
union all
select 'warning', format('process %s (%s, %s) has been in a transaction since %s', a.pid,
                         coalesce(a.usename, '?'), coalesce(nullif(a.application_name, ''), '?'),
                         a.xact_start)
from pg_catalog.pg_stat_activity a
where a.datname = current_database() and a.pid <> pg_catalog.pg_backend_pid()
  and a.backend_type = 'client backend'
  and a.xact_start < statement_timestamp() - interval '10 min'
union all
select 'warning', format('the prepared transaction %s has been open since %s', x.gid, x.prepared)
from pg_catalog.pg_prepared_xacts x
where x.database = current_database() and x.prepared < statement_timestamp() - interval '10 min'
union all
select 'warning', format('the replication slot %s holds back %s transactions', s.slot_name,
                         greatest(age(s.xmin), age(s.catalog_xmin)))
from pg_catalog.pg_replication_slots s
where greatest(age(s.xmin), age(s.catalog_xmin)) > 10000000
union all
select 'warning', format('%s transactions since the last freeze; autovacuum does not keep up',
                         age(d.datfrozenxid))
from pg_catalog.pg_database d
where d.datname = current_database() and age(d.datfrozenxid) > 1000000000
union all
select 'warning', format('%s of %s connections are in use', u.used, u.most)
from (
  select (select count(*) from pg_catalog.pg_stat_activity a
          where a.backend_type = 'client backend') as used,
         current_setting('max_connections')::integer
           - current_setting('superuser_reserved_connections')::integer as most
) u
where u.used > 0.8 * u.most
