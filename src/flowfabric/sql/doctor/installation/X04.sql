-- Indexes are valid, the tables have no triggers or rules of other software, and all events are
-- visible to readers.
--
-- Queries do not use an invalid index. A trigger or a rule changes the effect of the engine's
-- statements. Each event carries the number of the transaction that wrote it. If a dump is restored
-- into a server that has lower transaction numbers, readers do not see the restored events until
-- the server has reached the numbers of these events. In a distributed database, transaction
-- numbers are not checked.
--
-- Remedy:  For an index: reindex index concurrently. For a trigger or a rule: drop it, and follow
--          the events instead. For events from a dump: before any worker or client runs, begin a
--          new generation in each partition p: select ff._raise_generation(p::smallint).
select 'error' as level, format('the index %s is not valid', i.indexrelid::regclass) as problem
from pg_catalog.pg_index i
join pg_catalog.pg_class c on c.oid = i.indrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'ff' and not (i.indisvalid and i.indisready and i.indislive)
union all
select 'error', format('the trigger %s is on %s', t.tgname, t.tgrelid::regclass)
from pg_catalog.pg_trigger t
join pg_catalog.pg_class c on c.oid = t.tgrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'ff' and not t.tgisinternal and t.tgenabled <> 'D'
union all
select 'error', format('the rule %s is on %s', r.rulename, r.ev_class::regclass)
from pg_catalog.pg_rewrite r
join pg_catalog.pg_class c on c.oid = r.ev_class
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'ff' and c.relkind = 'r'
