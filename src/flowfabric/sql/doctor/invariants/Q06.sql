-- No counter of a gate is negative, and a gate has either no counters of starts or 62.
--
-- `running`, less the releases that no claim has counted yet, is the number of leases and tickets.
-- If a gate has counted starts, `slices` has 62 counters, each for the starts in a sixtieth of the
-- window. A gate has a rate if and only if it has a window.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  Correct the columns `running` and `slices` of the gate; Q01 tells how many leases there
--          are.
select 'Q06' as name, g.partition_key, null::uuid as execution_id,
       format('quota %s, key %s runs %s, slices %s', g.quota, coalesce(nullif(g.key, ''), 'none'),
              g.running, g.slices) as problem
from ff.gate g
where g.running - coalesce((
        select sum(r.slots) from ff.gate_release r
        where r.partition_key = g.partition_key and r.gate_id = g.gate_id), 0) < 0
   or (g.slices is not null and (cardinality(g.slices) <> 62 or 0 > any (g.slices)))
   or (g.rate is null) <> (g.rate_window is null)
