-- The events that record the end of an execution.
create or replace view ff.completion_feed as
select v.partition_key, v.event_id, v.execution_id, v.version, v.outcome::text, v.occurred_at,
       v.flow_id, v.namespace, v.instance_tag
from ff.event v
where v.kind in ('completed', 'failed', 'cancelled', 'expired', 'skipped');
