-- No execution waits for an ended run, unless the propagation of that end is pending.
--
-- A run that others wait for is marked as awaited, so that its end is propagated. Once the run has
-- ended, one of two things is true: the executions that waited for the run are woken, or the row
-- of the run says that the propagation is pending.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  `flowfabric cancel <id>`, then `flowfabric replay <id>`: the handler waits again and
--          sees that the run has ended.
select 'C02' as name, w.partition_key, w.waiter_id as execution_id,
       format('waits for %s, which %s', w.target_id,
              case when t.execution_id is null then 'is gone'
                   when t.phase = 'terminal' then 'has ended'
                   else 'is not marked as awaited' end) as problem
from ff.run_wait w
left join ff.execution t on t.partition_key = w.partition_key and t.execution_id = w.target_id
where w.ended_at is null
  and (t.execution_id is null or not t.is_awaited
       or (t.phase = 'terminal' and not t.wakes_pending))
