-- Events of operators' commands: changed priorities, replays and cancelled flows.
create or replace view ff.operator_feed as
select v.partition_key, v.event_id, v.execution_id, v.version, v.kind::text, v.actor,
       v.detail::text, v.flow_id, v.occurred_at, v.namespace, v.instance_tag
from ff.event v
where v.kind in ('priority_changed', 'replayed', 'flow_cancel_requested');
