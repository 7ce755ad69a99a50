-- An edge leads from one member of its flow to another.
--
-- The upstream and the downstream are two different members that exist. Both are in the partition
-- and the flow of the edge, and that flow exists. A trim of a member also removes its edges.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Cancel the member that waits for the missing upstream: `flowfabric cancel <id>`.
select 'F03' as name, d.partition_key, d.downstream_id as execution_id,
       format('edge %s of flow %s comes from %s%s and leads to %s%s', d.edge_id, d.flow_id,
              d.upstream_id,
              case when u.execution_id is null then ', which does not exist,'
                   when u.flow_id is distinct from d.flow_id then ', which is not a member,' end,
              case when d.upstream_id = d.downstream_id then 'itself'
                   else d.downstream_id::text end,
              case when w.execution_id is null then ', which does not exist'
                   when w.flow_id is distinct from d.flow_id then ', which is not a member'
              end) as problem
from ff.edge d
left join ff."execution" u
  on u.partition_key = d.partition_key and u.execution_id = d.upstream_id
left join ff."execution" w
  on w.partition_key = d.partition_key and w.execution_id = d.downstream_id
where d.upstream_id = d.downstream_id
   or u.flow_id is distinct from d.flow_id or w.flow_id is distinct from d.flow_id
union all
select 'F03', d.partition_key, d.downstream_id,
       format('edge %s is of flow %s, which does not exist', d.edge_id, d.flow_id)
from ff.edge d
where not exists (
  select from ff."flow" f
  where f.partition_key = d.partition_key and f.flow_id = d.flow_id)
