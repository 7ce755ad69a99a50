-- Add tags to a flow, or change the values of tags that it has. Other tags stay.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF305 flow_not_found
-- Locks:    the flow, waiting up to 2 s
-- Repeat:   nothing changes, because the tags have these values already
-- Rights:   app
drop function if exists ff.set_flow_tags;
create function ff.set_flow_tags(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid,
  p_tags          text
)
returns table (tags jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_problem text;
  v_flow    ff.flow;
  v_tags    jsonb;
  v_now     timestamptz;
begin
  perform ff._check_namespace(p_namespace);
  v_problem := case when p_tags is null then 'must not be null' else ff._tags_problem(p_tags) end;
  if v_problem is null and p_tags::jsonb = '{}' then
    v_problem := 'must not be empty';
  end if;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'tags', 'problem', v_problem));
  end if;
  v_flow := ff._lock_flow(p_partition_key, p_namespace, p_flow_id);
  v_now := ff.now();
  v_tags := coalesce(v_flow.tags, '{}') || p_tags::jsonb;
  if (select count(*) from jsonb_object_keys(v_tags)) > 64 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'tags', 'problem', 'would be more than 64'));
  end if;
  if v_tags is distinct from v_flow.tags then
    update ff.flow f set tags = v_tags, mutated_at = greatest(v_now, f.mutated_at)
    where f.partition_key = p_partition_key and f.flow_id = p_flow_id;
  end if;
  return query select v_tags;
end;
$$;
