-- The events of an execution show one lease after another, and agree with its row.
--
-- Each lease has an event that begins it and an event that ends it. If the holder ended the lease,
-- or the lease expired, both events have the same epoch. If somebody else ended the lease, the
-- epoch of the second event can be higher by 1. An execution that has lost its lease can end or be
-- scheduled for a retry before the next claim. Then the event of this end or retry names the lost
-- lease again. If the execution is leased, the last event that names a lease is the event that
-- began this lease. If the execution is not leased, the last event that names a lease did not begin
-- one. No event has a higher epoch than the row.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Two workers may have run the execution at the same time: compare their effects outside
--          the database. If the execution is leased, revoke the lease.
with reborn as materialized (
  -- If an id was used again after a trim, only its last use counts.
  select s.partition_key, s.execution_id, max(array[s.generation, s.event_id]) as since
  from ff.event s
  where s.kind = 'submitted'
  group by s.partition_key, s.execution_id
  having count(*) > 1
)
select 'O02' as name, l.partition_key, l.execution_id,
       format('%s v%s, epoch %s, lease %s follows %s, epoch %s, lease %s', l.kind, l.version,
              l.epoch, l.lease_id, coalesce(l.before_kind::text, 'nothing'), l.before_epoch,
              l.before_lease_id) as problem
from (
  select v.partition_key, v.execution_id, v.version, v.kind, v.epoch, v.lease_id, v.replays,
         lag(v.kind) over w as before_kind, lag(v.epoch) over w as before_epoch,
         lag(v.lease_id) over w as before_lease_id, lag(v.replays) over w as before_replays
  from (
    select x.partition_key, x.execution_id, x.generation, x.event_id, x.version, x.kind, x.epoch,
           x.lease_id,
           count(*) filter (where x.kind = 'replayed') over (
             partition by x.partition_key, x.execution_id
             order by x.generation, x.event_id) as replays
    from ff.event x
    where (x.lease_id is not null or x.kind in (
        'claimed', 'resumed', 'reclaimed', 'released', 'lease_expired', 'lease_revoked',
        'replayed'))
      and not exists (
        select from reborn r
        where r.partition_key = x.partition_key and r.execution_id = x.execution_id
          and array[x.generation, x.event_id] < r.since)
  ) v
  where v.kind <> 'replayed'
  window w as (partition by v.partition_key, v.execution_id order by v.generation, v.event_id)
) l
where case
    when l.lease_id is null or l.epoch is null then true
    when l.kind in ('claimed', 'resumed', 'reclaimed') then
      coalesce(l.before_kind in ('claimed', 'resumed', 'reclaimed'), false)
      -- If an execution lost its lease, ended and was replayed, its leases begin anew.
      or (l.kind = 'reclaimed')
         <> (l.before_kind is not null and l.before_kind in ('lease_expired', 'lease_revoked')
             and l.replays = l.before_replays)
      or coalesce(l.epoch <= l.before_epoch or l.lease_id = l.before_lease_id, false)
    when l.before_kind in ('claimed', 'resumed', 'reclaimed') then
      l.lease_id <> l.before_lease_id
      or l.epoch - l.before_epoch not between 0 and (l.kind in (
           'lease_revoked', 'cancelled', 'skipped', 'expired', 'retry_scheduled'))::integer
    else l.before_kind is null or l.before_kind not in ('lease_expired', 'lease_revoked')
      or l.kind not in ('failed', 'cancelled', 'skipped', 'expired', 'retry_scheduled')
  end
union all
select 'O02', e.partition_key, e.execution_id,
       format('%s with lease %s, epoch %s, but the last lease event is %s, lease %s, epoch %s',
              e.ownership, coalesce(e.lease_id::text, 'none'), e.epoch,
              coalesce(l.kind::text, 'none'), l.lease_id, l.epoch)
from ff.execution e
left join (
  select distinct on (v.partition_key, v.execution_id)
         v.partition_key, v.execution_id, v.kind, v.lease_id, v.epoch
  from ff.event v
  where v.lease_id is not null
  order by v.partition_key desc, v.execution_id desc, v.generation desc, v.event_id desc
) l on l.partition_key = e.partition_key and l.execution_id = e.execution_id
where (e.ownership = 'leased')
      <> (l.kind is not null and l.kind in ('claimed', 'resumed', 'reclaimed'))
   or (e.ownership = 'leased' and (e.lease_id, e.epoch) is distinct from (l.lease_id, l.epoch))
   or e.epoch < l.epoch
