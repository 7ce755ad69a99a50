-- The events of an execution have the versions 1, 2, 3 and so on, without a gap.
--
-- Every transition that is not quiet raises the version of the execution and writes one event with
-- this version. So the version of an execution is the version of its last event.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Subscribers may have missed a transition: let them read the execution itself.
select 'O04' as name, s.partition_key, s.execution_id,
       format('the event %s has version %s after %s', s.kind, s.version,
              coalesce(s.before_version::text, 'none')) as problem
from (
  select v.partition_key, v.execution_id, v.kind, v.version,
         lag(v.kind) over w as before_kind, lag(v.version) over w as before_version
  from ff.event v
  window w as (partition by v.partition_key, v.execution_id order by v.generation, v.event_id)
) s
-- if an id is used again after a trim, its versions start again at 1
where s.version <> case
    when s.kind = 'submitted' and s.before_kind in (
      'completed', 'failed', 'cancelled', 'expired', 'skipped') then 1
    else coalesce(s.before_version, 0) + 1
  end
union all
select 'O04', e.partition_key, e.execution_id,
       format('version %s, but the last event has version %s', e.version,
              coalesce(l.version::text, 'missing: there is none'))
from ff.execution e
left join (
  select distinct on (v.partition_key, v.execution_id) v.partition_key, v.execution_id, v.version
  from ff.event v
  order by v.partition_key desc, v.execution_id desc, v.generation desc, v.event_id desc
) l on l.partition_key = e.partition_key and l.execution_id = e.execution_id
where l.version is distinct from e.version
