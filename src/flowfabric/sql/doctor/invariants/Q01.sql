-- A gate counts exactly the leases and holds under it.
--
-- A hold is a slot that ff.check_admission took. The column `running` counts the leases and the
-- holds. A slot that is given back is first recorded in ff.gate_release, and subtracted from
-- `running` later. So the check subtracts the slots in ff.gate_release from `running`. The query
-- reads one snapshot, so the numbers match at any moment.
--
-- Holds:   always
-- Reads:   everything
-- Remedy:  Stop the workers. Set the column `running` of the gate to the number of leases and
--          holds, and delete the rows of the gate in ff.gate_release.
with leased as materialized (
  select e.partition_key, g.id, count(*) as slots
  from ff.execution e
  cross join lateral unnest(e.quota_ids) g(id)
  where e.ownership = 'leased' and e.quota_ids is not null
  group by e.partition_key, g.id
),
held as materialized (
  select h.partition_key, h.gate_id, count(*) as slots
  from ff.gate_hold h group by h.partition_key, h.gate_id
),
released as materialized (
  select r.partition_key, r.gate_id, sum(r.slots) as slots
  from ff.gate_release r group by r.partition_key, r.gate_id
)
select 'Q01' as name, g.partition_key, null::uuid as execution_id,
       format('quota %s, key %s counts %s, less %s given back, but %s are leased and %s held',
              g.quota, coalesce(nullif(g.key, ''), 'none'), g.running, coalesce(r.slots, 0),
              coalesce(l.slots, 0), coalesce(h.slots, 0)) as problem
from ff.gate g
left join leased l on l.partition_key = g.partition_key and l.id = g.gate_id
left join held h on h.partition_key = g.partition_key and h.gate_id = g.gate_id
left join released r on r.partition_key = g.partition_key and r.gate_id = g.gate_id
where g.running - coalesce(r.slots, 0) <> coalesce(l.slots, 0) + coalesce(h.slots, 0)
