-- A grant is short-lived and well-formed.
--
-- A grant expires between a millisecond and a minute after it was issued. It stores the SHA-256 of
-- its key.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Cancel the execution and replay it, which removes the grant.
select 'R03' as name, g.partition_key, g.execution_id,
       format('a grant from %s to %s with a key hash of %s bytes', g.issued_at, g.expires_at,
              octet_length(g.key_hash)) as problem
from ff.grant g
where g.expires_at - g.issued_at not between interval '1 millisecond' and interval '1 minute'
   or octet_length(g.key_hash) <> 32
