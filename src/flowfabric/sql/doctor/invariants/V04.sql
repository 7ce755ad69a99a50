-- An execution has a stream if and only if its row says so.
--
-- Functions that end a lease read only the row of the execution. A stream that the row does not
-- mention would never be closed or trimmed.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  Report a bug.
select 'V04' as name, e.partition_key, e.execution_id,
       'the execution says that it has a stream, and there is none' as problem
from ff.execution e
where e.has_stream and not exists (
  select from ff.stream s
  where s.partition_key = e.partition_key and s.execution_id = e.execution_id)
union all
select 'V04', s.partition_key, s.execution_id,
       'there is a stream, and the execution says that it has none'
from ff.execution e
join ff.stream s on s.partition_key = e.partition_key and s.execution_id = e.execution_id
where not e.has_stream
