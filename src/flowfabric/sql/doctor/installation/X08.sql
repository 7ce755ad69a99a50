-- Events are counted minute by minute, and no event was lost before it was counted.
--
-- Percentiles on the dashboard and in GET /v1/minutes come from these counts. A reconciler, which
-- every worker runs, counts the events. Under a high load the counts can be late. Counts that are
-- more than 15 minutes late are reported; the usual cause is that no worker runs. Lost events are
-- reported for 30 days.
--
-- Remedy:  If counts are late: start a worker. Events that were lost stay uncounted.
select 'warning' as level,
       format('partition %s: no event after %s is counted; percentiles are too old', p.partition_key,
              e.occurred_at) as problem
from ff.minute_position p
cross join (select ff.now() as now offset 0) t
cross join lateral (select string_to_array(p.cursor_text, ':') as parts) c
cross join lateral (
  select x.occurred_at
  from ff.event x
  where x.partition_key = p.partition_key
    and (x.generation, x.xid) > (c.parts[6]::integer, c.parts[7]::xid8)
  order by x.generation, x.xid
  limit 1) e
where e.occurred_at < t.now - interval '15 minutes'
union all
select 'warning',
       format('partition %s: at %s events were lost before they were counted', p.partition_key,
              p.lost_at)
from ff.minute_position p
cross join (select ff.now() as now offset 0) t
where p.lost_at > t.now - interval '30 days'
