-- The revision of a graph is at least the number of its members and edges together.
--
-- Each added member and each added edge raises the revision. A call that adds an edge names the
-- revision that the caller has read. The time of the last change is not before the creation of the
-- flow.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  None is needed for the members to continue. An edge may have been added by a caller that
--          had not seen the current graph: compare `flowfabric flow graph <flow>` with the intended
--          graph.
select 'F14' as name, f.partition_key, null::uuid as execution_id,
       format('flow %s has %s members and %s edges at revision %s', f.flow_id, f.node_count,
              f.edge_count, f.graph_revision) as problem
from ff.flow f
where f.graph_revision < f.node_count + f.edge_count
   or f.mutated_at < f.created_at
