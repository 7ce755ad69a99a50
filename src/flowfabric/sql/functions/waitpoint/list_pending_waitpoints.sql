-- List the open waitpoints of an execution, by id. No token is shown.
--
-- It is pending while no wait was opened for it, then active. p_after is the id of the last row of
-- the page before. An execution that has ended has none.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF301 not_found
-- Locks:    none
-- Replay:   a read
-- Rights:   app
drop function if exists ff.list_pending_waitpoints;
create function ff.list_pending_waitpoints(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_after         uuid default null,
  p_limit         integer default 100
)
returns table (
  waitpoint_id uuid,
  key          text,
  state        text,
  kid          text,
  created_at   timestamptz,
  activated_at timestamptz,
  expires_at   timestamptz,
  signal_count bigint
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
  v_phase ff.phase;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  select e.phase into v_phase from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    and case when p_namespace is null then true else e.namespace = p_namespace end;
  if not found then
    perform ff._refuse('WF301', 'not_found', jsonb_build_object(
      'id', format('{fp:%s}:%s', p_partition_key, p_execution_id)));
  end if;
  return query
  select w.waitpoint_id, w.key,
         case when w.activated_at is null then 'pending' else 'active' end,
         w.kid, w.created_at, w.activated_at, w.expires_at, c.number
  from ff.waitpoint w
  cross join lateral (
    select count(*) as number from ff.signal g
    where g.partition_key = p_partition_key and g.execution_id = p_execution_id
      and g.waitpoint_id = w.waitpoint_id
    offset 0) c
  where w.partition_key = p_partition_key and w.execution_id = p_execution_id
    and w.closed_at is null and v_phase <> 'terminal'
    and (p_after is null or w.waitpoint_id > p_after)
  order by w.waitpoint_id
  limit p_limit;
end;
$$;
