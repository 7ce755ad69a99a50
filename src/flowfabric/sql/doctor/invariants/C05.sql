-- The parent of every child exists, or was trimmed.
--
-- The parent is another execution of the same namespace. It existed when its handler submitted the
-- child, and may have been trimmed later. A missing parent is reported only if no trim can explain
-- it: no event of the partition was ever trimmed, and ff.event_trim does not list the parent.
--
-- Holds:   always
-- Reads:   everything
-- Remedy:  None is needed for the child to continue. Restore the parent from a backup, or find out
--          who wrote the child's parent_id.
select 'C05' as name, e.partition_key, e.execution_id,
       format('its parent %s %s', e.parent_id,
              case when p.execution_id is null then 'is gone'
                   when p.execution_id = e.execution_id then 'is itself'
                   else 'is of ' || p.namespace end) as problem
from ff.execution e
left join ff.execution p on p.partition_key = e.partition_key and p.execution_id = e.parent_id
where e.parent_id is not null
  and case
    when p.execution_id is not null
      then p.namespace <> e.namespace or p.execution_id = e.execution_id
    else not exists (
        select from ff.trim_mark m where m.partition_key = e.partition_key)
      and not exists (
        select from ff.event_trim t
        where t.partition_key = e.partition_key and t.execution_id = e.parent_id)
  end
