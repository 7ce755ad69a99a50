-- The revision of a graph counts its changes.
--
-- Every member and every edge was a change, and every policy may have been one. Whoever adds an
-- edge says which revision it saw.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  None is needed for the members to go on. An edge may have been added by someone who had
--          not seen the graph as it is: compare `flowfabric flow graph <flow>` with what was meant.
select 'F14' as name, f.partition_key, null::uuid as execution_id,
       format('flow %s has %s members and %s edges at revision %s', f.flow_id, f.node_count,
              f.edge_count, f.graph_revision) as problem
from ff.flow f
where f.graph_revision < f.node_count + f.edge_count
   or f.mutated_at < f.created_at
