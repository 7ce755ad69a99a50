-- Every stored signal is in the inbox, was noticed, or is spent.
--
-- Any other signal would never be taken. A signal has an effect if and only if it was noticed. The
-- view ff.signal_feed shows the effect.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Send the signal again; then report a bug.
select 'U08' as name, g.partition_key, g.execution_id,
       case when g.noticed_at is null
              then format('signal %s was not noticed and is not in the inbox', g.signal_id)
            else format('signal %s was noticed without an effect', g.signal_id) end as problem
from ff.signal g
left join ff.signal_inbox b
  on b.partition_key = g.partition_key and b.execution_id = g.execution_id
    and b.signal_id = g.signal_id
where (g.noticed_at is null and b.signal_id is null and g.taken_at is null)
   or (g.noticed_at is null) <> (g.effect is null)
