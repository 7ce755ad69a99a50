-- The events of leases, as `acquired`, `reclaimed`, `expired` or `revoked`. A lease that ends
-- because its execution expires is shown as `expired`, too. Every other end of a lease is shown as
-- `revoked`, even a completion. If an execution fails after too many reclaims, its last lease is
-- shown as `revoked`, although that lease had ended before.
create or replace view ff.lease_feed as
select v.partition_key, v.event_id, v.execution_id, v.version,
       case
         when v.kind in ('claimed', 'resumed') then 'acquired'
         when v.kind = 'reclaimed' then 'reclaimed'
         when v.kind in ('lease_expired', 'expired') then 'expired'
         else 'revoked'
       end as lease_event,
       v.kind::text, v.attempt_index, v.lease_id, v.epoch, v.worker_instance_id, v.occurred_at,
       v.namespace, v.instance_tag
from ff.event v
where v.lease_id is not null;
