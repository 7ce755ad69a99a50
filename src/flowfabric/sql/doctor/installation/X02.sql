-- The schema matches this release exactly.
--
-- The schema steps that were applied have the text of this release. The library has the number and
-- the hash of this release. The database has every function, with exactly the body of this
-- release. It also has all CHECK and UNIQUE constraints and all indexes that the schema steps name.
--
-- Remedy:  flowfabric db migrate. This command re-creates functions only if the hash in ff.meta
--          differs. So if a function differs, first set library_hash in ff.meta to null. Re-create
--          a constraint or an index by hand, as in the schema step (flowfabric db sql).
select 'error' as level,
       case when p.oid is null then format('the function ff.%s is missing', f.name)
            else format('the function ff.%s differs from this release', f.name)
       end as problem
from unnest($1::text[], $2::text[]) f(name, body)
left join pg_catalog.pg_namespace n on n.nspname = 'ff'
left join pg_catalog.pg_proc p on p.pronamespace = n.oid and p.proname = f.name
where p.oid is null or p.prosrc <> f.body
union all
select 'error', format('the constraint %s is missing', c.name)
from unnest($3::text[]) c(name)
where not exists (
  select from pg_catalog.pg_constraint x
  join pg_catalog.pg_namespace n on n.oid = x.connamespace
  where n.nspname = 'ff' and x.conname = c.name)
union all
select 'error', format('the index %s is missing', i.name)
from unnest($4::text[]) i(name)
where not exists (
  select from pg_catalog.pg_class x
  join pg_catalog.pg_namespace n on n.oid = x.relnamespace
  where n.nspname = 'ff' and x.relname = i.name and x.relkind = 'i')
