-- An idempotency key in force leads to an execution of its own namespace.
--
-- It is no error if the execution was trimmed before the key expired. So a missing execution is
-- reported only if no trim can explain it: no event of the partition was ever trimmed, and
-- ff.event_trim does not list the execution.
--
-- Holds:   always
-- Reads:   everything
-- Remedy:  Restore the execution from a backup; or wait: the key is free again when it expires.
select 'D01' as name, k.partition_key, k.execution_id,
       format('the key %s of %s leads to %s', k.key, k.namespace,
              coalesce('an execution of ' || e.namespace, 'no execution')) as problem
from ff.idempotency_key k
left join ff.execution e on e.partition_key = k.partition_key and e.execution_id = k.execution_id
where (k.scope = 'unfinished' or k.expires_at > (select ff.now()))
  and case
    when e.execution_id is not null then e.namespace <> k.namespace
    else not exists (
        select from ff.trim_mark m where m.partition_key = k.partition_key)
      and not exists (
        select from ff.event_trim t
        where t.partition_key = k.partition_key and t.execution_id = k.execution_id)
  end
