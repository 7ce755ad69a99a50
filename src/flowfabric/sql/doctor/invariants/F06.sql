-- An edge is resolved only by an end of its upstream.
--
-- A resolved edge stores the outcome with which its upstream ended. If the upstream was replayed
-- later, its events still show this outcome. Only the outcome success satisfies an edge.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  The downstream member may have started or been skipped without cause: check what that
--          member did, then replay the upstream.
select 'F06' as name, d.partition_key, d.downstream_id as execution_id,
       format('edge %s is %s by the outcome %s of %s, which is %s', d.edge_id, d.resolution,
              coalesce(d.outcome::text, 'none'), d.upstream_id,
              coalesce(u.public_state::text, 'gone')) as problem
from ff.edge d
left join ff."execution" u
  on u.partition_key = d.partition_key and u.execution_id = d.upstream_id
where d.resolution in ('satisfied', 'impossible')
  and ((d.resolution = 'satisfied') is distinct from (d.outcome = 'success')
       or (u.outcome is distinct from d.outcome
           and not exists (
             select from ff."event" v
             where v.partition_key = d.partition_key and v.execution_id = d.upstream_id
               and v.outcome = d.outcome)))
