-- Read the summary of an execution: the document that its summary frames have built. Returns
-- nothing if the execution has no summary or does not exist.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.read_summary;
create function ff.read_summary(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid
)
returns table (
  document         text,
  version          bigint,
  patch_kind       text,
  first_applied_at timestamptz,
  updated_at       timestamptz
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  return query
  select y.document::text, y.version, 'json-merge-patch', y.first_applied_at, y.updated_at
  from ff.stream_summary y
  where y.partition_key = p_partition_key and y.execution_id = p_execution_id
    and exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = p_execution_id
        and case when p_namespace is null then true else e.namespace = p_namespace end
      offset 0);
end;
$$;
