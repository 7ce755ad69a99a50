-- Mark open waitpoints as active, because a wait for them was opened. An active waitpoint no longer
-- expires. It accepts only values of the type that the wait declares for it, or every value if the
-- wait declares no type. The caller has locked the execution.
drop function if exists ff._activate_waitpoints;
create function ff._activate_waitpoints(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_waitpoint_ids uuid[],
  p_condition     jsonb,
  p_now           timestamptz
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  update ff.waitpoint w set
    activated_at = coalesce(w.activated_at, p_now),
    schema_id = o.schema_id
  from (
    select x.waitpoint_id, (jsonb_path_query_first(
             p_condition, 'strict $.** ? (@.waitpoint == $id).schema',
             jsonb_build_object('id', x.waitpoint_id), silent => true) #>> '{}')::bigint
             as schema_id
    from unnest(p_waitpoint_ids) x(waitpoint_id)
    offset 0) o
  where w.partition_key = p_partition_key and w.execution_id = p_execution_id
    and w.waitpoint_id = o.waitpoint_id and w.closed_at is null
    and (w.activated_at is null or w.schema_id is distinct from o.schema_id);
end;
$$;
