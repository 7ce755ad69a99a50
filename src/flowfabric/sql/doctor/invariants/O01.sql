-- Every end has exactly one event, and the row of a terminal execution has the same outcome as its
-- last event.
--
-- Each replay follows an end. So an execution has had one end for each replay, and one more if it
-- is terminal now. Replays that an upstream caused count too. The outcome in the event of an end
-- fits the kind of the event: for example, `completed` has the outcome success.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Subscribers may have missed an end or seen a wrong one: let them read the execution
--          itself.
with reborn as materialized (
  -- If an id was used again after a trim, only its last use counts.
  select s.partition_key, s.execution_id, max(array[s.generation, s.event_id]) as since
  from ff.event s
  where s.kind = 'submitted'
  group by s.partition_key, s.execution_id
  having count(*) > 1
)
select 'O01' as name, e.partition_key, e.execution_id,
       format('outcome %s after %s replays, but its events show %s ends%s', e.outcome,
              coalesce(c.replays, 0), coalesce(c.number, 0),
              case when c.is_odd then ', one with another outcome than its kind' end) as problem
from ff.execution e
left join (
  select v.partition_key, v.execution_id,
         count(*) filter (where v.kind <> 'replayed') as number,
         count(*) filter (where v.kind = 'replayed') as replays,
         bool_or(v.outcome is distinct from case v.kind when 'completed' then 'success'::ff.outcome
                                                        when 'failed' then 'failed'
                                                        when 'cancelled' then 'cancelled'
                                                        when 'expired' then 'expired'
                                                        when 'skipped' then 'skipped' end) as is_odd
  from ff.event v
  where v.kind in ('completed', 'failed', 'cancelled', 'expired', 'skipped', 'replayed')
    and not exists (
      select from reborn r
      where r.partition_key = v.partition_key and r.execution_id = v.execution_id
        and array[v.generation, v.event_id] < r.since)
  group by v.partition_key, v.execution_id
) c on c.partition_key = e.partition_key and c.execution_id = e.execution_id
where coalesce(c.number, 0) <> coalesce(c.replays, 0) + (e.phase = 'terminal')::integer or c.is_odd
union all
select 'O01', e.partition_key, e.execution_id,
       format('outcome %s, but its last event shows another outcome or none', e.outcome)
from ff.execution e
where e.phase = 'terminal'
  and not exists (
    select from ff.event v
    where v.partition_key = e.partition_key and v.execution_id = e.execution_id
      and v.version = e.version and v.outcome = e.outcome)
