-- Every result that a member was promised exists.
--
-- A satisfied edge has a result: the result of its upstream, or a kept result if the upstream was
-- replayed. A kept result belongs to an existing execution. At the moment when an edge group was
-- satisfied, it had at least as many satisfied edges as its policy needs. The member receives the
-- results of these edges only, not of edges that were satisfied later.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  The member would start without its input, or with a wrong one. Cancel the member before
--          a worker claims it, replay the upstream, then replay the member.
select 'F16' as name, d.partition_key, d.downstream_id as execution_id,
       format('edge %s is satisfied by %s, which is %s%s', d.edge_id, d.upstream_id, u.public_state,
              case when d.kept_version is not null
                then format(', and its result of version %s is not kept', d.kept_version)
              end) as problem
from ff.edge d
join ff."execution" u
  on u.partition_key = d.partition_key and u.execution_id = d.upstream_id
where d.resolution = 'satisfied'
  and case when d.kept_version is null then u.outcome <> 'success'
           else not exists (
             select from ff.kept_result k
             where k.partition_key = d.partition_key and k.execution_id = d.upstream_id
               and k.version = d.kept_version) end
union all
select 'F16', k.partition_key, k.execution_id,
       format('the result of version %s is kept, but the execution is gone', k.version)
from ff.kept_result k
where not exists (
  select from ff."execution" e
  where e.partition_key = k.partition_key and e.execution_id = k.execution_id)
union all
select 'F16', g.partition_key, g.downstream_id,
       format('group %s needed %s satisfied edges at %s, but had %s', g.group_no, g.fired_k,
              g.fired_at, c.counted)
from ff.edge_group g
cross join lateral (
  select count(*) as counted from ff.edge d
  where d.partition_key = g.partition_key and d.downstream_id = g.downstream_id
    and d.group_no = g.group_no and d.resolution = 'satisfied' and d.resolved_at <= g.fired_at
) c
where g.state = 'satisfied' and c.counted < g.fired_k
  -- the edges of a trimmed member are deleted with it
  and not exists (
    select from ff.flow f
    where f.partition_key = g.partition_key and f.flow_id = g.flow_id and f.trimmed_at is not null)
