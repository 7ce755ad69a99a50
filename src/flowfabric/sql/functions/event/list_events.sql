-- List the events of one execution in order of version. If p_version is given, return only the
-- event of that version.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_events;
create function ff.list_events(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_version       integer default null
)
returns table (
  event_id           bigint,
  execution_id       uuid,
  version            integer,
  kind               text,
  occurred_at        timestamptz,
  attempt_index      integer,
  lease_id           uuid,
  epoch              bigint,
  worker_instance_id text,
  outcome            text,
  flow_id            uuid,
  namespace          text,
  lane               text,
  task               text,
  instance_tag       text,
  actor              text,
  detail             text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  return query
  select v.event_id, v.execution_id, v.version, v.kind, v.occurred_at, v.attempt_index, v.lease_id,
         v.epoch, v.worker_instance_id, v.outcome, v.flow_id, v.namespace, v.lane, v.task,
         v.instance_tag, v.actor, v.detail
  from ff.event_view v
  where v.partition_key = p_partition_key and v.execution_id = p_execution_id
    and (p_namespace is null or v.namespace = p_namespace)
    and (p_version is null or v.version = p_version)
  order by v.version;
end;
$$;
