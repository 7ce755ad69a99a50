-- Find the partitions with events whose transaction numbers this server has not reached yet. Only
-- the current generation of events is read. This is part of check X04.
select format('events of partition %s have transaction numbers up to %s, this server is at %s',
              l.partition_key, l.xid, pg_catalog.pg_snapshot_xmax(s.snapshot)) as problem
from (select pg_catalog.pg_current_snapshot() as snapshot) s
cross join generate_series(0, (
  select m.value::smallint - 1 from ff.meta m where m.name = 'partitions')) p(partition_key)
left join ff.event_generation g on g.partition_key = p.partition_key::smallint
cross join lateral (
  select v.partition_key, v.xid from ff.event v
  where v.partition_key = p.partition_key::smallint and v.generation = coalesce(g.generation, 0)
  order by v.xid desc
  limit 1
) l
where l.xid >= pg_catalog.pg_snapshot_xmax(s.snapshot) and g.node_id is null
