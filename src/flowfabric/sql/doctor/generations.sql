-- Find partitions for which ff.event_generation names no node of the cluster. Return at most 10 of
-- them. This is part of check X06.
select format('partition %s has no generation of events that names a node', p.partition_key) as problem
from unnest($1::smallint[]) p(partition_key)
where p.partition_key <> all (array(
  select g.partition_key from ff.event_generation g where g.node_id is not null))
order by p.partition_key
limit 10
