-- A gate counts exactly the leases and tickets under it.
--
-- A ticket is a slot that ff.check_admission took. The column `running` counts the leases and the
-- tickets. A slot that is given back is first recorded in ff.gate_release, and subtracted from
-- `running` later. So the check subtracts the slots in ff.gate_release from `running`. The query
-- reads one snapshot, so the numbers match at any moment.
--
-- Holds:   always
-- Reads:   everything
-- Remedy:  Stop the workers. Set the column `running` of the gate to the number of leases and
--          tickets, and delete the rows of the gate in ff.gate_release.
with leased as materialized (
  select e.partition_key, g.id, count(*) as slots
  from ff.execution e
  cross join lateral unnest(e.quota_ids) g(id)
  where e.ownership = 'leased' and e.quota_ids is not null
  group by e.partition_key, g.id
),
ticket as materialized (
  select k.partition_key, k.gate_id, count(*) as slots
  from ff.gate_ticket k group by k.partition_key, k.gate_id
),
released as materialized (
  select r.partition_key, r.gate_id, sum(r.slots) as slots
  from ff.gate_release r group by r.partition_key, r.gate_id
)
select 'Q01' as name, g.partition_key, null::uuid as execution_id,
       format('quota %s, key %s counts %s, less %s given back, but has %s leases and %s tickets',
              g.quota, coalesce(nullif(g.key, ''), 'none'), g.running, coalesce(r.slots, 0),
              coalesce(l.slots, 0), coalesce(k.slots, 0)) as problem
from ff.gate g
left join leased l on l.partition_key = g.partition_key and l.id = g.gate_id
left join ticket k on k.partition_key = g.partition_key and k.gate_id = g.gate_id
left join released r on r.partition_key = g.partition_key and r.gate_id = g.gate_id
where g.running - coalesce(r.slots, 0) <> coalesce(l.slots, 0) + coalesce(k.slots, 0)
