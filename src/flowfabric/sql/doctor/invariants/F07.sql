-- An edge group is decided as soon as its policy allows a decision, and not before.
--
-- A decided group is satisfied or impossible. A group is satisfied when enough of its upstreams
-- have succeeded: all for all_of, one for any_of, k for a quorum. It is impossible when too few
-- upstreams are left to reach that number. A decided group stores when it was decided, how many
-- successes it needed, and how many edges it had.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  If the group should be satisfied: cancel the member and replay it. If the group was
--          decided too early: check what the member did.
select 'F07' as name, g.partition_key, g.downstream_id as execution_id,
       format('group %s, %s%s of %s, is %s with %s succeeded, %s failed, %s skipped; decided at '
              '%s with k %s of %s', g.group_no, g.policy, ' ' || g.k, g.n, g.state, g.succeeded,
              g.failed, g.skipped, coalesce(g.fired_at::text, 'no time'),
              coalesce(g.fired_k::text, '-'), coalesce(g.fired_n::text, '-')) as problem
from ff.edge_group g
cross join lateral (
  select coalesce(g.fired_n, g.n) as n,
         case g.policy when 'all_of' then coalesce(g.fired_n, g.n)
                       when 'any_of' then 1
                       else g.k end as needed
) p
where num_nonnulls(g.fired_at, g.fired_k, g.fired_n)
      <> case g.state when 'pending' then 0 else 3 end
   or g.fired_n > g.n or g.fired_k <> p.needed
   or case g.state
        -- A quorum that is larger than its group becomes impossible only when an upstream ends.
        when 'pending' then g.succeeded + g.failed + g.skipped > 0
          and (g.succeeded >= p.needed or g.failed + g.skipped > p.n - p.needed)
        when 'satisfied' then g.succeeded < p.needed or p.needed = 0
        else g.failed + g.skipped <= p.n - p.needed
      end
