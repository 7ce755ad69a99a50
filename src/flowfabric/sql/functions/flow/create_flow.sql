-- Create an empty flow, to which members and edges are added one by one. If the whole graph is
-- known, use ff.submit_flow instead.
--
-- The caller chooses the id. If the flow exists, it keeps its kind and tags.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none; waits up to 2 s for a concurrent call that stores the same flow id
-- Repeat:   `already_satisfied`; an existing flow is not changed
-- Rights:   app
drop function if exists ff.create_flow;
create function ff.create_flow(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid,
  p_flow_kind     text,
  p_tags          text default null,
  p_creator       text default null
)
returns table (outcome text, graph_revision integer)
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
  v_now     timestamptz;
  v_problem text[];
  v_known   record;
begin
  perform ff._check_namespace(p_namespace);
  v_problem := case
    when p_partition_key is null or p_partition_key not between 0 and (
           select m.value::integer - 1 from ff.meta m where m.name = 'partitions')
      then array['partition_key', 'there is no such partition']
    when p_namespace is null then array['namespace', 'must not be null']
    when ff._is_nil_id(p_flow_id) then array['flow_id', 'must be a uuid other than the nil uuid']
    when exists (
        select from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = p_flow_id
        offset 0)
      then array['flow_id', 'is taken: make a new one']
    when p_flow_kind is null or octet_length(p_flow_kind) not between 1 and 256
      then array['flow_kind', 'must be text of 1 to 256 bytes']
    when ff._tags_problem(p_tags) is not null then array['tags', ff._tags_problem(p_tags)]
    when octet_length(p_creator) > 256 then array['creator', 'must be at most 256 bytes'] end;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', v_problem[1], 'problem', v_problem[2]));
  end if;
  v_now := ff.now();
  insert into ff.flow (
    partition_key, flow_id, namespace, flow_kind, created_at, mutated_at, tags, creator)
  values (p_partition_key, p_flow_id, p_namespace, p_flow_kind, v_now, v_now,
          nullif(p_tags::jsonb, '{}'), p_creator)
  on conflict do nothing;
  if found then
    return query select 'created', 0;
    return;
  end if;
  select f.graph_revision, f.namespace into v_known
  from ff.flow f
  where f.partition_key = p_partition_key and f.flow_id = p_flow_id;
  if v_known.namespace <> p_namespace then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'flow_id', 'problem', 'is taken: make a new one'));
  end if;
  return query select 'already_satisfied', v_known.graph_revision;
end;
$$;
