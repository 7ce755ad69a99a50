-- The payload, policy and tags of an execution exist.
--
-- A payload of at most 256 bytes is usually on the row of the execution. A larger payload, the
-- policy, the tags and the creator are in the body. The row says whether a payload and a body
-- exist. If the payload were missing, the handler would be called without arguments. If the body
-- were missing, the attempt would be retried without a policy.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Restore the row of ff.execution_body, or the payload, from a backup before the
--          execution is claimed again. Or cancel the execution and submit it again.
select 'S11' as name, e.partition_key, e.execution_id,
       format('%s, and %s is missing', e.public_state,
              case when e.has_body and b.execution_id is null then 'its body'
                   else 'its payload' end) as problem
from ff.execution e
left join ff.execution_body b
  on b.partition_key = e.partition_key and b.execution_id = e.execution_id
where (e.has_body and b.execution_id is null)
   or (e.has_payload and e.payload is null and b.payload is null)
