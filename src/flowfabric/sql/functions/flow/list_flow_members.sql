-- List the members of a flow in id order. The list begins after the member p_after. If p_states is
-- given, only members in one of these states are listed. Returns no rows if the flow does not
-- exist.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_flow_members;
create function ff.list_flow_members(
  p_partition_key smallint,
  p_namespace     text,
  p_flow_id       uuid,
  p_after         uuid default null,
  p_limit         integer default 1000,
  p_states        text[] default null
)
returns table (
  execution_id   uuid,
  node_name      text,
  task           text,
  lane           text,
  public_state   text,
  version        integer,
  attempt_index  integer,
  created_at     timestamptz,
  started_at     timestamptz,
  terminal_at    timestamptz,
  delayed_until  timestamptz,
  failure_reason text
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
declare
  v_after constant uuid := coalesce(p_after, '00000000-0000-0000-0000-000000000000');
begin
  perform ff._check_namespace(p_namespace);
  if p_limit is null or p_limit not between 1 and 10000 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'limit', 'problem', 'must be 1 to 10000'));
  end if;
  return query
  select e.execution_id, b.node_name, r.task, r.lane, e.public_state::text, e.version,
         e.attempt_index, e.created_at, e.started_at, e.terminal_at, e.delayed_until,
         e.failure_reason
  from ff.execution e
  left join lateral (
    select x.task, x.lane from ff.route x where x.route_id = e.route_id offset 0) r on true
  left join lateral (
    select x.node_name from ff.execution_body x
    where x.partition_key = p_partition_key and x.execution_id = e.execution_id
    offset 0) b on true
  where e.partition_key = p_partition_key and e.flow_id = p_flow_id and e.execution_id > v_after
    and case when p_namespace is null then true else e.namespace = p_namespace end
    and case when p_states is null then true else e.public_state::text = any (p_states) end
  order by e.execution_id limit p_limit;
end;
$$;
