-- The counts of an edge group match its edges.
--
-- Every edge belongs to an edge group of its downstream. The column `n` of a group is the number of
-- its edges. The other counts say how many of these edges were resolved by a success, by a skip,
-- and by any other outcome. A trim of members also deletes their edges, but does not change the
-- counts. So the counts of a flow with trimmed members can be too high, but not too low.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  The member may wait forever or start too early: look at its edges with `flowfabric
--          doctor --explain <id>`, then cancel the member or replay it.
select 'F05' as name, coalesce(g.partition_key, c.partition_key) as partition_key,
       coalesce(g.downstream_id, c.downstream_id) as execution_id,
       format('group %s counts %s edges, %s succeeded, %s failed, %s skipped; it has %s, %s, %s, '
              '%s%s', coalesce(g.group_no, c.group_no), coalesce(g.n::text, 'nothing: no'),
              g.succeeded, g.failed, g.skipped, coalesce(c.n, 0), coalesce(c.succeeded, 0),
              coalesce(c.failed, 0), coalesce(c.skipped, 0),
              case when c.flow_id <> g.flow_id then ', of another flow' end) as problem
from ff.edge_group g
full join (
  select d.partition_key, d.downstream_id, d.group_no, min(d.flow_id::text)::uuid as flow_id,
         count(*) as n,
         count(*) filter (where d.resolution = 'satisfied') as succeeded,
         count(*) filter (where d.resolution = 'impossible' and d.outcome <> 'skipped') as failed,
         count(*) filter (where d.resolution = 'impossible' and d.outcome = 'skipped') as skipped
  from ff.edge d
  group by d.partition_key, d.downstream_id, d.group_no
) c on c.partition_key = g.partition_key and c.downstream_id = g.downstream_id
  and c.group_no = g.group_no
left join ff."flow" f on f.partition_key = g.partition_key and f.flow_id = g.flow_id
where case
    when f.trimmed_at is null then
      (g.n, g.succeeded, g.failed, g.skipped) is distinct from (
        coalesce(c.n, 0), coalesce(c.succeeded, 0), coalesce(c.failed, 0), coalesce(c.skipped, 0))
    else g.n < c.n or g.succeeded < c.succeeded or g.failed < c.failed or g.skipped < c.skipped
  end
   or c.flow_id <> g.flow_id
union all
select 'F05', g.partition_key, g.downstream_id,
       format('group %s of flow %s has no member', g.group_no, g.flow_id)
from ff.edge_group g
where not exists (
  select from ff."execution" e
  where e.partition_key = g.partition_key and e.execution_id = g.downstream_id
    and e.flow_id = g.flow_id)
