-- Apply the merge patches p_patches, one after another, to the summary of an execution. If a patch
-- is invalid, or if the summary would be larger than 1 MiB, change nothing and return the problem.
-- Otherwise return null. The caller has locked the stream.
drop function if exists ff._apply_patches;
create function ff._apply_patches(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_patches       bytea[],
  p_now           timestamptz
)
returns text
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
  v_document jsonb;
  v_patch    bytea;
  v_value    jsonb;
  v_problem  text;
begin
  select y.document into v_document
  from ff.stream_summary y
  where y.partition_key = p_partition_key and y.execution_id = p_execution_id;
  foreach v_patch in array p_patches loop
    v_problem := ff._patch_problem(v_patch);
    if v_problem is not null then
      return v_problem;
    end if;
    v_value := convert_from(v_patch, 'UTF8')::jsonb;
    v_document := ff._merge_patch(v_document, v_value);
    -- The stored document never contains this text, so it is enough to search the patch.
    if strpos(v_value::text, '__ff_null__') > 0 then
      v_document := ff._write_nulls(v_document);
    end if;
  end loop;
  if octet_length(v_document::text) > 1048576 then
    return 'the summary would be larger than 1 MiB (1048576 bytes)';
  end if;
  insert into ff.stream_summary as y (
    partition_key, execution_id, document, version, first_applied_at, updated_at)
  values (p_partition_key, p_execution_id, v_document, cardinality(p_patches), p_now, p_now)
  on conflict (partition_key, execution_id) do update set
    document = excluded.document,
    version = y.version + excluded.version,
    updated_at = excluded.updated_at;
  return null;
end;
$$;
