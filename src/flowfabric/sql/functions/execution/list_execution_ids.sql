-- List the execution ids of a partition in ascending order, for a scan of the whole partition.
--
-- A call reads at most 10 000 executions. If most of them belong to other namespaces, the page is
-- short. The last row has no id. Its next_after is the p_after of the next page; null means that
-- nothing is left. As far as possible, next_after does not reveal the id of an execution of another
-- namespace.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_execution_ids;
create function ff.list_execution_ids(
  p_partition_key smallint,
  p_namespace     text,
  p_after         uuid default null,
  p_limit         integer default 1000
)
returns table (execution_id uuid, next_after uuid)
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
  v_ids   uuid[];
  v_last  uuid;
  v_seen  integer;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  select array_agg(s.execution_id order by s.execution_id) filter (where s.is_ours),
         (array_agg(s.execution_id order by s.execution_id desc))[1], count(*)
    into v_ids, v_last, v_seen
  from (
    select e.execution_id, p_namespace is null or e.namespace = p_namespace as is_ours
    from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id > v_after
    order by e.execution_id
    limit case when p_namespace is null then p_limit else 10000 end
  ) s;
  if cardinality(v_ids) >= p_limit then
    v_ids := v_ids[1 : p_limit];
    v_last := v_ids[p_limit];
  elsif p_namespace is not null and v_seen = 10000 then
    -- The last id may belong to another namespace: the next page starts slightly before it.
    if ff._blur(v_last, false) > v_after then
      v_last := ff._blur(v_last, false);
      v_ids := array(select u.id from unnest(v_ids) u(id) where u.id <= v_last order by u.id);
    else
      v_last := coalesce(v_ids[cardinality(v_ids)], v_last);
    end if;
  end if;
  return query
  select u.id, null::uuid from unnest(v_ids) with ordinality u(id, n) order by u.n;
  execution_id := null;
  next_after := (
    select v_last from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id > v_last
    limit 1);
  return next;
end;
$$;
