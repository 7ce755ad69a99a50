-- Return the signals that a wait would take, and since when they are there: null if the wait has to
-- go on waiting. Changes nothing.
drop function if exists ff._read_candidate;
create function ff._read_candidate(
  p_partition_key  smallint,
  p_execution_id   uuid,
  p_condition      jsonb,
  out ready_at     timestamptz,
  out signal_ids   uuid[]
)
returns record
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_keys    text[];
  v_names   text[];
  v_ids     uuid[];
  v_sources text[];
begin
  if p_condition ?| array['every', 'at_least', 'approve'] then
    select array_agg(case when g.waitpoint_id is null then 's ' || g.name
                          else 'w ' || g.waitpoint_id end order by g.noticed_at, g.signal_id),
           array_agg(g.name order by g.noticed_at, g.signal_id),
           array_agg(g.signal_id order by g.noticed_at, g.signal_id),
           array_agg(concat_ws(' ', g.source_type, g.source_identity)
                     order by g.noticed_at, g.signal_id)
      into v_keys, v_names, v_ids, v_sources
    from ff.signal g
    where g.partition_key = p_partition_key and g.execution_id = p_execution_id
      and g.taken_at is null and g.noticed_at is not null;
    signal_ids := ff._choose_signals(p_condition, v_keys, v_names, v_ids, v_sources);
    select max(g.noticed_at) into ready_at from ff.signal g
    where g.partition_key = p_partition_key and g.execution_id = p_execution_id
      and g.signal_id = any (signal_ids);
    return;
  end if;
  if p_condition ? 'waitpoint' then
    select g.noticed_at, array[g.signal_id] into ready_at, signal_ids
    from ff.signal g
    where g.partition_key = p_partition_key and g.execution_id = p_execution_id
      and g.waitpoint_id = (p_condition ->> 'waitpoint')::uuid
      and g.taken_at is null and g.noticed_at is not null
      and case when p_condition ? 'name' then g.name = p_condition ->> 'name' else true end
    order by g.noticed_at, g.signal_id
    limit 1;
    return;
  end if;
  select g.noticed_at, array[g.signal_id] into ready_at, signal_ids
  from ff.signal g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id
    and g.name = p_condition ->> 'signal' and g.taken_at is null and g.noticed_at is not null
    and g.waitpoint_id is null
  order by g.noticed_at, g.signal_id
  limit 1;
end;
$$;
