-- Steps of executions, without their values.
create or replace view ff.step_view as
select s.partition_key, s.execution_id, e.namespace, s.name, s.occurrence, s.position,
       s.is_sequential, s.kind::text, s.attempt_index, s.epoch, s.recorded_at, s.until_at,
       s.encoding, octet_length(s.value) as value_bytes, s.ready_at, s.taken_as
from ff.step s
join ff.execution e on e.partition_key = s.partition_key and e.execution_id = s.execution_id;
