-- A budget has a next reset if and only if it has a period, and each reset happens on time.
--
-- A reconciler resets a budget when its period ends, and sets the next reset. A budget that has a
-- next reset but no period, or a period but no next reset, is reported as an error immediately.
--
-- Holds:   soon, within 15 s. A finding is a warning. It is an error after 150 s, but only if
--          a worker is alive
-- Reads:   the database
-- Remedy:  `flowfabric budget reset` sets the next reset.
select 'B06' as name, null::smallint as partition_key, null::uuid as execution_id,
       format('budget %s, key %s, period %s: next reset %s', b.budget,
              coalesce(nullif(b.key, ''), 'none'), b.period, b.next_reset_at) as problem,
       (b.period is null) <> (b.next_reset_at is null)
       or b.next_reset_at < ff.now() - interval '150 s' and exists (
            select from ff.worker w
            where w.heartbeat_at + w.liveness_ttl > ff.now()
              and w.namespace in ('', b.namespace)) as is_stuck
from ff.budget b
where (b.period is null) <> (b.next_reset_at is null)
   or b.next_reset_at < ff.now() - interval '15 s'
