-- No subscription has lost events or keeps events from being trimmed, and no webhook is disabled.
--
-- An event that is due to be trimmed stays while a subscription has not acknowledged it, but at
-- most for the time `keep` of the subscription. After that time the event is trimmed, and the
-- subscription has lost it. The option on_expiry of the consumer decides what follows: the consumer
-- raises CursorExpired, or continues with later events.
--
-- Remedy:  Start the consumer of the subscription, or make it faster. If nobody needs the
--          subscription: flowfabric subscription rm NAME. If events are lost: flowfabric
--          subscription reset NAME --since TIME. For a webhook: correct its receiver, then
--          flowfabric webhook enable NAME; or flowfabric webhook rm NAME.
--
-- The query reads the subscriptions, the trim marks and the due events in three separate parts. If
-- it joined them directly, it could not run on distributed tables.
with position as materialized (
  select s.namespace, s.name, s.keep, greatest(s.created_at, s.acked_at, s.changed_at) as moved_at,
         c.parts[2]::integer as partition_key, c.parts[6]::integer as generation,
         c.parts[7]::xid8 as xid, c.parts[12] as mark
  from ff.subscription s
  cross join lateral string_to_table(s.cursor_text, '/') t(part)
  cross join lateral (select string_to_array(t.part, ':') as parts) c
),
trimmed as materialized (
  select m.partition_key, m.generation, m.xid, m.losses from ff.trim_mark m
),
due as materialized (
  select f.partition_key, f.first_due_at, l.generation, l.xid
  from ff.partition p
  cross join lateral (
    select x.partition_key, x.execution_id, x.first_due_at
    from ff.event_trim x
    where x.partition_key = p.partition_key and x.first_due_at is not null
    order by x.due_at
    limit 100) f
  cross join lateral (
    select e.generation, e.xid from ff.event e
    where e.partition_key = f.partition_key and e.execution_id = f.execution_id
    order by e.generation desc, e.xid desc
    limit 1) l
)
select 'warning' as level,
       format('the subscription %s of namespace %s has lost events: they were trimmed before it '
              'acknowledged them', p.name, p.namespace) as problem
from position p
join trimmed m on m.partition_key = p.partition_key
where (p.mark <> m.generation || '.' || m.xid and (p.generation, p.xid) < (m.generation, m.xid))
   or (m.losses ->> (p.namespace || ' ' || p.name))::timestamptz > p.moved_at
group by p.namespace, p.name
union all
select 'warning',
       format('the subscription %s of namespace %s is behind: events that should have been trimmed '
              'since %s stay for it, until %s at the latest',
              p.name, p.namespace, min(d.first_due_at), min(d.first_due_at) + p.keep)
from position p
join due d on d.partition_key = p.partition_key
  and (d.generation, d.xid) > (p.generation, p.xid)
group by p.namespace, p.name, p.keep
union all
select 'warning', format('the webhook %s of namespace %s has been disabled since %s: %s',
                         s.name, s.namespace,
                         s.disabled_at, s.answer)
from ff.subscription s
where s.disabled_at is not null
