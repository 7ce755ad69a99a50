-- The signals that were delivered to executions, and the effect of each, without payloads.
create or replace view ff.signal_feed as
select g.partition_key, g.xid, g.signal_id, g.execution_id, g.name, g.waitpoint_id, g.category,
       g.source_type, g.source_identity, g.accepted_at, g.noticed_at, g.effect, e.namespace,
       e.instance_tag, g.generation
from ff.signal g
join ff.execution e on e.partition_key = g.partition_key and e.execution_id = g.execution_id;
