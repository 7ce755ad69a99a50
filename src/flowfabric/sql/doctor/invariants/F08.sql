-- A member waits for its upstreams when it must, and only then.
--
-- An edge is unresolved until the end of its upstream is propagated to it. A member that waits for
-- dependencies has a pending edge group with an unresolved edge. A member that has never started is
-- not eligible while a pending group has an edge that is applied and unresolved. C01 checks
-- executions that wait for runs. F12 and F13 check the members of a cancelled flow.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  If a member waits although no group is pending: cancel it and replay it. If a member
--          could start too early: `flowfabric cancel <id>`, then look at its upstreams.
select 'F08' as name, e.partition_key, e.execution_id,
       format('%s (%s), with %s of %s groups pending', e.eligibility, e.blocking_reason,
              (select count(*) filter (where x.state = 'pending') from ff."edge_group" x
               where x.partition_key = e.partition_key and x.downstream_id = e.execution_id),
              (select count(*) from ff."edge_group" x
               where x.partition_key = e.partition_key
                 and x.downstream_id = e.execution_id)) as problem
from ff.execution e
where e.eligibility = 'blocked_by_dependencies' and e.wait_left is null
  and not exists (
    select from ff."edge_group" g
    where g.partition_key = e.partition_key and g.downstream_id = e.execution_id
      and g.state = 'pending' and g.succeeded + g.failed + g.skipped < g.n)
  and not exists (
    select from ff."flow" f
    where f.partition_key = e.partition_key and f.flow_id = e.flow_id
      and f.cancel_policy in ('cancel_all', 'cancel_pending'))
union all
select 'F08', g.partition_key, g.downstream_id,
       format('may be claimed, while group %s waits for %s', g.group_no, d.upstream_id)
from ff.edge_group g
join ff."execution" e
  on e.partition_key = g.partition_key and e.execution_id = g.downstream_id
cross join lateral (
  select x.upstream_id from ff."edge" x
  where x.partition_key = g.partition_key and x.downstream_id = g.downstream_id
    and x.group_no = g.group_no and x.resolution = 'unsatisfied'
  limit 1
) d
where g.state = 'pending'
  and e.eligibility = 'eligible_now' and e.total_attempt_count = 0
