-- No edge waits for an upstream that has ended.
--
-- An upstream with downstreams is marked as awaited, so that its end is propagated. Once the
-- upstream has ended, one of two things is true: its edges are resolved, or its row says that the
-- propagation is pending (C04 checks this). There is one exception. A replay of the downstream can
-- reopen an edge. A reopened edge waits for a later end of its upstream.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Replay the upstream: `flowfabric replay <id>`. Or cancel the waiting member.
select 'F10' as name, d.partition_key, d.downstream_id as execution_id,
       format('edge %s waits for %s, which %s', d.edge_id, d.upstream_id,
              case when u.phase = 'terminal' then 'has ended'
                   else 'is not marked as awaited' end) as problem
from ff.edge d
join ff."execution" u
  on u.partition_key = d.partition_key and u.execution_id = d.upstream_id
where d.resolution = 'unsatisfied'
  and (not u.is_awaited
       or (u.phase = 'terminal' and not u.wakes_pending
           and d.reopened_version is distinct from u.version))
