-- Judge whether a submitted flow is already stored. The verdict is `duplicate` if the flow is
-- stored, `invalid` if another flow has its id, and null otherwise.
--
-- A stored flow with the same id is the same flow if the namespace is the same and the first
-- submitted node is one of its members. If members of the stored flow were trimmed, the namespace
-- alone decides.
--
-- If the flow is no longer stored because all its members were trimmed, the events of the first
-- node decide. If these events name the flow, the verdict is `duplicate`, so that a late repeat
-- does not run the flow again.
drop function if exists ff._judge_existing_flow;
create function ff._judge_existing_flow(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid,
  p_first_id      text,
  out outcome     text,
  out detail      jsonb
)
returns record
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
  v_first_id constant uuid := case
    when p_first_id ~* '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' then p_first_id::uuid end;
begin
  select case when f.namespace = p_namespace and (
                f.trimmed_at is not null or exists (
                  select from ff.execution e
                  where e.partition_key = p_partition_key and e.flow_id = p_flow_id
                    and e.execution_id = v_first_id))
           then 'duplicate' else 'invalid' end
    into outcome
  from ff.flow f
  where f.partition_key = p_partition_key and f.flow_id = p_flow_id;
  if outcome is null then
    select case when v.namespace = p_namespace and v.flow_id = p_flow_id then 'duplicate' end
      into outcome
    from ff.event v
    where v.partition_key = p_partition_key and v.execution_id = v_first_id
      and not exists (
        select from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = v_first_id)
    order by v.generation, v.event_id
    limit 1;
  elsif outcome = 'invalid' then
    detail := jsonb_build_object('field', 'flow_id', 'problem', 'is taken: make a new one');
  end if;
end;
$$;
