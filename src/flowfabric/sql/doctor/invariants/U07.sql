-- A taken signal and the wait that took it name each other.
--
-- If a replay deleted the wait, the signals that the wait had taken name no wait: they are spent.
-- This check also reports an entry of the inbox whose signal is gone or was noticed already.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `flowfabric replay <id> --from-step <name>`, with the name of the wait: the handler asks
--          for the signal again.
select 'U07' as name, s.partition_key, s.execution_id,
       format('wait %s#%s took signal %s, which %s', s.name, s.occurrence, u.id,
              case when g.signal_id is null then 'is gone'
                   else format('names %s#%s', g.wait_name, g.wait_occurrence) end) as problem
from ff.step s
cross join lateral unnest(s.signal_ids) u(id)
left join ff.signal g
  on g.partition_key = s.partition_key and g.execution_id = s.execution_id and g.signal_id = u.id
where s.kind = 'wait'
  and (g.wait_name, g.wait_occurrence) is distinct from (s.name, s.occurrence)
union all
select 'U07', g.partition_key, g.execution_id,
       format('signal %s names wait %s#%s, which did not take it', g.signal_id, g.wait_name,
              g.wait_occurrence)
from ff.signal g
left join ff.step s
  on s.partition_key = g.partition_key and s.execution_id = g.execution_id
    and s.name = g.wait_name and s.occurrence = g.wait_occurrence
where g.wait_name is not null
  and (s.signal_ids is null or g.signal_id <> all (s.signal_ids))
union all
select 'U07', b.partition_key, b.execution_id,
       format('signal %s is in the inbox, but %s', b.signal_id,
              case when g.signal_id is null then 'is gone' else 'was noticed' end)
from ff.signal_inbox b
left join ff.signal g
  on g.partition_key = b.partition_key and g.execution_id = b.execution_id
    and g.signal_id = b.signal_id
where g.signal_id is null or g.noticed_at is not null
