-- Each flow stores the correct number of its members and the correct number of its edges.
--
-- A call that adds a member or an edge also raises the stored number. A trim of members does not
-- lower the numbers, so a flow with trimmed members is not checked.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  None is needed for the members to continue; find out who deleted or added rows by hand.
select 'F01' as name, f.partition_key, null::uuid as execution_id,
       format('flow %s stores %s members and %s edges, but has %s and %s', f.flow_id, f.node_count,
              f.edge_count, m.number, g.number) as problem
from ff.flow f
cross join lateral (
  select count(*) as number from ff."execution" e
  where e.partition_key = f.partition_key and e.flow_id = f.flow_id
) m
cross join lateral (
  select count(*) as number from ff."edge" d
  where d.partition_key = f.partition_key and d.flow_id = f.flow_id
) g
where f.trimmed_at is null and (f.node_count <> m.number or f.edge_count <> g.number)
