-- No gate counts less than nothing, and its slices are 62 counts from 0 on.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  Set running and slices of the gate to what is true; Q01 tells the leases.
select 'Q06' as name, g.partition_key, null::uuid as execution_id,
       format('quota %s, key %s runs %s, slices %s', g.quota, coalesce(nullif(g.key, ''), 'none'),
              g.running, g.slices) as problem
from ff.gate g
where g.running - coalesce((
        select sum(r.slots) from ff.gate_release r
        where r.partition_key = g.partition_key and r.gate_id = g.gate_id), 0) < 0
   or (g.slices is not null and (cardinality(g.slices) <> 62 or 0 > any (g.slices)))
   or (g.rate is null) <> (g.rate_window is null)
