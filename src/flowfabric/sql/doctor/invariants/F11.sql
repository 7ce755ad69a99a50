-- Upstreams that are no longer needed are soon cancelled.
--
-- When an edge group is decided, it no longer needs its unfinished upstreams. If the policy of the
-- group says so, these upstreams are cancelled. The transaction that decides the group cancels as
-- many of them as it can. The others are listed in the row of the group. The reconciler
-- edge_cancel_dispatcher of any worker cancels the listed upstreams within seconds. Only a decided
-- group has a list, and the list has only upstreams of the group.
--
-- Holds:   soon, within 35 s. A finding is a warning. It is an error after 350 s, but only if
--          a worker is alive
-- Reads:   the database
-- Remedy:  Start a worker, or read the logs of the running workers. If the logs show no error, a
--          transaction locks one of the upstreams: find that transaction in pg_stat_activity.
select 'F11' as name, g.partition_key, g.downstream_id as execution_id,
       format('group %s has had %s upstreams to cancel since %s', g.group_no,
              cardinality(g.cancel_members), g.cancel_enqueued_at) as problem,
       g.cancel_enqueued_at < t.now - interval '350 s' and t.is_worked as is_stuck
from ff.edge_group g
cross join (
  select n.now, exists (
    select from ff.worker w where w.heartbeat_at + w.liveness_ttl > n.now) as is_worked
  from (select ff.now() as now offset 0) n
) t
where g.cancel_pending and g.cancel_enqueued_at < t.now - interval '35 s'
union all
select 'F11', g.partition_key, g.downstream_id,
       format('group %s, which is %s, must not list %s as an upstream to cancel',
              g.group_no, g.state, m.upstream_id), true
from ff.edge_group g
cross join lateral unnest(g.cancel_members) m(upstream_id)
where g.cancel_pending
  and (g.state = 'pending'
       or not exists (
         select from ff.edge d
         where d.partition_key = g.partition_key and d.downstream_id = g.downstream_id
           and d.group_no = g.group_no and d.upstream_id = m.upstream_id))
  and not exists (
    select from ff.flow f
    where f.partition_key = g.partition_key and f.flow_id = g.flow_id
      and f.trimmed_at is not null)
