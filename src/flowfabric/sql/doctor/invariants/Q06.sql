-- No counter of a gate is negative, and `slices` is null or has 62 counters.
--
-- A slice is a sixtieth of the window of the gate's rate. The column `slices` has the numbers of
-- starts in the last 62 slices; it is null before the first start. Slots that were given back, and
-- that no claim has counted yet, are subtracted from `running` before the check. A gate has a rate
-- if and only if it has a window.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  Correct the columns `running` and `slices` of the gate. The finding of Q01 says how many
--          leases and tickets there are.
select 'Q06' as name, g.partition_key, null::uuid as execution_id,
       format('quota %s, key %s runs %s, slices %s', g.quota, coalesce(nullif(g.key, ''), 'none'),
              g.running, g.slices) as problem
from ff.gate g
where g.running - coalesce((
        select sum(r.slots) from ff.gate_release r
        where r.partition_key = g.partition_key and r.gate_id = g.gate_id), 0) < 0
   or (g.slices is not null and (cardinality(g.slices) <> 62 or 0 > any (g.slices)))
   or (g.rate is null) <> (g.rate_window is null)
