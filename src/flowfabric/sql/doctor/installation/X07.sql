-- No subscription has lost events or keeps events from being trimmed, and no webhook is disabled.
--
-- Events that a subscription has not acknowledged stay for a while after they are due to be trimmed.
-- Then they are trimmed all the same, and its consumer raises CursorExpired or resumes with later
-- events, as its policy says.
--
-- Remedy:  Start its consumer, or make it faster. If nobody needs it, flowfabric subscription rm. If
--          events are lost, flowfabric subscription reset NAME --since TIME. For a webhook: correct
--          its receiver, then flowfabric webhook enable NAME, or flowfabric webhook rm NAME.
select 'warning' as level,
       format('the subscription %s of namespace %s has lost events: they were trimmed before it '
              'acknowledged them', s.name, s.namespace) as problem
from ff.subscription s
where exists (
  select
  from string_to_table(s.cursor_text, '/') t(part)
  cross join lateral (select string_to_array(t.part, ':') as parts) c
  join ff.trim_mark m on m.partition_key = c.parts[2]::integer
  where c.parts[12] <> m.generation || '.' || m.xid
    and (c.parts[6]::integer, c.parts[7]::xid8) < (m.generation, m.xid))
union all
select 'warning',
       format('the subscription %s of namespace %s is behind: events that should have been trimmed '
              'since %s stay for it, until %s at the latest',
              s.name, s.namespace, k.first_due_at, k.first_due_at + s.keep)
from ff.subscription s
cross join lateral (
  select min(f.first_due_at) as first_due_at
  from string_to_table(s.cursor_text, '/') t(part)
  cross join lateral (select string_to_array(t.part, ':') as parts) c
  cross join lateral (
    select x.partition_key, x.execution_id, x.first_due_at
    from ff.event_trim x
    where x.partition_key = c.parts[2]::integer and x.first_due_at is not null
    order by x.due_at
    limit 100) f
  where exists (
    select from ff.event e
    where e.partition_key = f.partition_key and e.execution_id = f.execution_id
      and (e.generation, e.xid) > (c.parts[6]::integer, c.parts[7]::xid8))
) k
where k.first_due_at is not null
union all
select 'warning', format('the webhook %s of namespace %s is disabled since %s: %s', s.name, s.namespace,
                         s.disabled_at, s.answer)
from ff.subscription s
where s.disabled_at is not null
