-- Read the state of one execution, without payload and result. Returns no row if the execution does
-- not exist in the namespace.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.read_execution_info;
create function ff.read_execution_info(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid
)
returns table (
  execution_id        uuid,
  namespace           text,
  lane                text,
  task                text,
  priority            integer,
  phase               text,
  ownership           text,
  eligibility         text,
  blocking_reason     text,
  blocking_detail     text,
  outcome             text,
  attempt_state       text,
  public_state        text,
  version             integer,
  attempt_index       integer,
  total_attempt_count integer,
  flow_id             uuid,
  created_at          timestamptz,
  started_at          timestamptz,
  terminal_at         timestamptz
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  return query
  select v.execution_id, v.namespace, v.lane, v.task, v.priority, v.phase, v.ownership,
         v.eligibility, v.blocking_reason, v.blocking_detail, v.outcome, v.attempt_state,
         v.public_state, v.version, v.attempt_index, v.total_attempt_count, v.flow_id,
         v.created_at, v.started_at, v.terminal_at
  from ff.execution_list v
  where v.partition_key = p_partition_key and v.execution_id = p_execution_id
    and (p_namespace is null or v.namespace = p_namespace);
end;
$$;
