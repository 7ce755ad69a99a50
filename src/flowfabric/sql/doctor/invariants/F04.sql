-- The graph of a flow has no cycle.
--
-- Members of a cycle would wait for each other forever. If every edge leads to a member with a
-- higher id, there is no cycle. In any other graph, the query removes edges that cannot be part of
-- a cycle: an edge is in no cycle if no edge leads to its upstream, or if no edge leads away from
-- its downstream. The query repeats the removal until it finds no more such edges. The edges that
-- remain are part of a cycle or lie between two cycles.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Cancel the flow, or one member of the cycle: `flowfabric cancel <id>`.
with recursive peeled as (
  select d.partition_key, d.flow_id, array_agg(d.upstream_id) as upstreams,
         array_agg(d.downstream_id) as downstreams, false as is_stuck
  from ff."edge" d
  where (d.partition_key, d.flow_id) in (
    select x.partition_key, x.flow_id from ff.edge x where x.upstream_id >= x.downstream_id)
  group by d.partition_key, d.flow_id
  union all
  select p.partition_key, p.flow_id, r.upstreams, r.downstreams,
         cardinality(r.upstreams) = cardinality(p.upstreams)
  from peeled p
  cross join lateral (
    select array_agg(l.upstream_id) as upstreams, array_agg(l.downstream_id) as downstreams
    from (
      select max(n.upstream_id::text)::uuid as upstream_id,
             max(n.downstream_id::text)::uuid as downstream_id
      from (
        select b.no, b.upstream_id, b.downstream_id,
               -- is_joined: whether another edge leads to the upstream of this edge, or away from
               -- its downstream
               case when b.upstream_id is null then bool_or(b.upstream_id is not null) over w
                    else bool_or(b.upstream_id is null) over w end as is_joined
        from (
          select t.no, t.upstream_id as node, t.upstream_id, null::uuid as downstream_id
          from unnest(p.upstreams) with ordinality t(upstream_id, no)
          union all
          select t.no, t.downstream_id, null, t.downstream_id
          from unnest(p.downstreams) with ordinality t(downstream_id, no)
        ) b
        window w as (partition by b.node)
      ) n
      group by n.no
      having bool_and(n.is_joined)
    ) l
  ) r
  where not p.is_stuck and r.upstreams is not null
)
select 'F04' as name, p.partition_key, p.downstreams[1] as execution_id,
       format('%s edges of flow %s are a cycle or lie between cycles; one leads from %s to %s',
              cardinality(p.upstreams), p.flow_id, p.upstreams[1], p.downstreams[1]) as problem
from peeled p
where p.is_stuck
