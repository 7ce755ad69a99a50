-- Each gate of a quota has the limits in force, or a share of them.
--
-- The first of these that exists is in force: the limits that an operator has set for the key of
-- the gate; the limits that an operator has set for all keys; the limits of the quota. If there
-- are several partitions, each gate has a share of the limits in force. All shares together are at
-- most these limits.
--
-- Holds:   always
-- Reads:   everything
-- Remedy:  `flowfabric quota set` with the present limits writes them to all gates again.
with parted as materialized (
  select m.value::integer > 1 as is_parted from ff.meta m where m.name = 'partitions'
),
gated as materialized (
  select g.partition_key, g.gate_id, g.quota, g.key, g.max_running, g.rate,
         case when c.key is null then q.concurrency else c.concurrency end as concurrency_in_force,
         case when c.key is null then q.rate else c.rate end as rate_in_force
  from ff.gate g
  left join ff.quota q on q.namespace = g.namespace and q.quota = g.quota
  left join lateral (
    select x.key, x.concurrency, x.rate from ff.quota_change x
    where x.namespace = g.namespace and x.quota = g.quota and x.key in (g.key, '')
    order by x.key desc
    limit 1) c on true
)
select 'Q02' as name, g.partition_key, null::uuid as execution_id,
       format('quota %s, key %s lets %s run and %s start, but %s and %s are in force',
              g.quota, coalesce(nullif(g.key, ''), 'none'), coalesce(g.max_running::text, 'any'),
              coalesce(g.rate::text, 'any'),
              coalesce(case when p.is_parted then s.concurrency
                            else g.concurrency_in_force end::text, 'any'),
              coalesce(case when p.is_parted then s.rate else g.rate_in_force end::text, 'any'))
         as problem
from gated g
cross join parted p
left join ff.gate_share s on s.gate_id = g.gate_id and s.share_no = g.partition_key
where (g.max_running, g.rate) is distinct from (
        case when p.is_parted then s.concurrency else g.concurrency_in_force end,
        case when p.is_parted then s.rate else g.rate_in_force end)
union all
select 'Q02', g.partition_key, null,
       format('the shares of quota %s, key %s are more than its limits', g.quota,
              coalesce(nullif(g.key, ''), 'none'))
from gated g
cross join parted p
cross join lateral (
  select sum(s.concurrency) as concurrency, sum(s.rate) as rate
  from ff.gate_share s where s.gate_id = g.gate_id) t
where p.is_parted and (t.concurrency > g.concurrency_in_force or t.rate > g.rate_in_force)
