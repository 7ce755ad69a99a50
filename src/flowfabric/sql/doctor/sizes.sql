-- Read the size of each table, its live and dead rows, and when it was last vacuumed.
select c.relname as name, pg_total_relation_size(c.oid) as bytes,
       coalesce(s.n_live_tup, 0) as rows, coalesce(s.n_dead_tup, 0) as dead,
       greatest(s.last_vacuum, s.last_autovacuum) as vacuumed_at
from pg_class c
left join pg_stat_all_tables s on s.relid = c.oid
where c.relnamespace = 'ff'::regnamespace and c.relkind = 'r'
order by pg_total_relation_size(c.oid) desc, c.relname
