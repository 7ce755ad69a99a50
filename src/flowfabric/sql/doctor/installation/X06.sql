-- A distributed database is distributed as a whole.
--
-- Tables without a partition are on every node, and the tables of workers are on the coordinator.
-- All other tables are distributed by partition, like ff.execution. Every function is on every
-- node. A public function whose first argument is the partition is delegated: a call runs on the
-- node of that partition. (A call of a function that is not delegated runs on the coordinator, and
-- is slow.) No other function is delegated. All nodes are active and have the metadata of Citus.
-- Every partition has a generation of events that names a node. On a single server there is nothing
-- to check.
--
-- Remedy:  flowfabric db distribute, on the coordinator: it adds everything that is missing. If a
--          node is not active or has no metadata: select citus_activate_node('HOST', PORT).
select 'error' as level,
       case when p.logicalrelid is null then format('the table ff.%s is not distributed', c.relname)
            else format('the table ff.%s is distributed in another way', c.relname) end as problem
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
cross join lateral (
  select case when c.relname in ('worker', 'worker_event') then 'coordinator'
              when exists (
                select from pg_catalog.pg_attribute a
                where a.attrelid = c.oid and a.attname = 'partition_key') then 'partitioned'
              else 'reference' end as placement) w
left join pg_catalog.pg_dist_partition p on p.logicalrelid = c.oid
left join pg_catalog.pg_dist_partition x
  on x.logicalrelid = pg_catalog.to_regclass('ff.execution') and x.partmethod = 'h'
where n.nspname = 'ff' and c.relkind = 'r' and not pg_catalog.relation_is_a_known_shard(c.oid)
  and w.placement is distinct from
      case when p.partmethod = 'h' and p.colocationid = x.colocationid then 'partitioned'
           when p.partmethod = 'n' and p.repmodel = 't' then 'reference'
           when p.partmethod = 'n' and p.repmodel = 's' then 'coordinator' end
union all
select 'error',
       case when o.objid is null then format('the function ff.%s is not on every node', f.name)
            when f.is_delegated then format('calls of ff.%s are not delegated', f.name)
            else format('calls of ff.%s are delegated, and should not be', f.name) end
from unnest($1::text[], $2::boolean[], $3::boolean[]) f(name, is_delegated, is_forced)
join pg_catalog.pg_namespace n on n.nspname = 'ff'
join pg_catalog.pg_proc p on p.pronamespace = n.oid and p.proname = f.name
left join pg_catalog.pg_dist_object o
  on o.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass and o.objid = p.oid
left join pg_catalog.pg_dist_partition x on x.logicalrelid = pg_catalog.to_regclass('ff.execution')
where o.objid is null
   or f.is_delegated <> (
        coalesce(o.distribution_argument_index = 0 and o.colocationid = x.colocationid, false))
   or f.is_forced <> coalesce(o.force_delegation, false)
union all
select 'error', format('node %s:%s %s', d.nodename, d.nodeport,
                       case when d.isactive then 'has no metadata of the cluster'
                            else 'is not active' end)
from pg_catalog.pg_dist_node d
where d.noderole = 'primary' and not (d.isactive and d.hasmetadata and d.metadatasynced)
