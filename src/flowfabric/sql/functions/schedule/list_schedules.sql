-- List schedules with their tasks and lanes, ordered by namespace, app and name. p_app and p_name
-- restrict the list to one app and to one name.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_schedules;
create function ff.list_schedules(
  p_namespace text,
  p_app       text default null,
  p_name      text default null
)
returns table (
  namespace      text,
  app            text,
  name           text,
  schedule_id    uuid,
  state          text,
  version        integer[],
  task           text,
  lane           text,
  cron           text,
  every          interval,
  time_zone      text,
  anchor_at      timestamptz,
  rule_no        integer,
  misfire        text,
  priority       integer,
  is_paused      boolean,
  orphaned_at    timestamptz,
  next_at        timestamptz,
  last_at        timestamptz,
  last_id        uuid,
  fired_count    bigint,
  declared_at    timestamptz,
  changed_at     timestamptz,
  changed_by     text,
  reason         text,
  last_partition smallint
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  return query
  select v.namespace, v.app, v.name, v.schedule_id, v.state, v.version, v.task, v.lane, v.cron,
         v.every, v.time_zone, v.anchor_at, v.rule_no, v.misfire, v.priority, v.is_paused,
         v.orphaned_at, v.next_at, v.last_at, v.last_id, v.fired_count, v.declared_at,
         v.changed_at, v.changed_by, v.reason, v.last_partition
  from ff.schedule_view v
  where (p_namespace is null or v.namespace = p_namespace) and (p_app is null or v.app = p_app)
    and (p_name is null or v.name = p_name)
  order by v.namespace, v.app, v.name;
end;
$$;
