-- Schedules with their route and the version of the app that declares them.
create or replace view ff.schedule_view as
select s.namespace, s.app, s.name, s.schedule_id, s.state::text, a.version, a.generation, r.task,
       r.lane, s.cron, s.every, s.time_zone, s.anchor_at, s.is_anchored, s.rule_no,
       s.misfire::text, s.priority, s.is_paused, s.orphaned_at, s.next_at, s.last_at, s.last_id,
       s.fired_count, s.declared_at, s.changed_at, s.changed_by, s.reason,
       s.last_partition
from ff.schedule s
join ff.schedule_app a on a.namespace = s.namespace and a.app = s.app
join ff.route r on r.route_id = s.route_id;
