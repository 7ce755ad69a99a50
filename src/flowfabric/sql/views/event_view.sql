-- Events with the lane and the task of their route. Read the history of one execution in order of
-- version. To follow the events of all executions, use a cursor (decision 0003).
create or replace view ff.event_view as
select v.partition_key, v.event_id, v.execution_id, v.version, v.kind::text, v.occurred_at,
       v.attempt_index, v.lease_id, v.epoch, v.worker_instance_id, v.outcome::text, v.flow_id,
       v.namespace, r.lane, r.task, v.instance_tag, v.actor, v.detail::text
from ff.event v
left join ff.route r on r.route_id = v.route_id;
