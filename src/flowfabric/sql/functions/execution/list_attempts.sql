-- List the attempts of one execution, first to latest.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_attempts;
create function ff.list_attempts(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid
)
returns table (
  attempt_index      integer,
  attempt_id         uuid,
  attempt_type       text,
  lifecycle          text,
  epoch              bigint,
  started_at         timestamptz,
  ended_at           timestamptz,
  worker_id          text,
  worker_instance_id text,
  attempt_reason     text,
  pause_cause        text,
  failure_class      text,
  failure_category   text,
  failure_reason     text,
  failure_detail     bytea,
  failure_place      text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  return query
  select v.attempt_index, v.attempt_id, v.attempt_type, v.lifecycle, v.epoch, v.started_at,
         v.ended_at, v.worker_id, v.worker_instance_id, v.attempt_reason, v.pause_cause,
         v.failure_class, v.failure_category, v.failure_reason, v.failure_detail,
         v.failure_place
  from ff.attempt_view v
  where v.partition_key = p_partition_key and v.execution_id = p_execution_id
    and (p_namespace is null or v.namespace = p_namespace)
  order by v.attempt_index;
end;
$$;
