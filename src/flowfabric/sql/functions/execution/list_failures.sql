-- List failed executions, grouped by fingerprint: task, category and place. The largest group comes
-- first.
--
-- The call reads the failed executions with the 2 000 highest ids in the partition, and groups the
-- executions among them that match p_namespace and p_task. A null matches everything. `seen` is the
-- number of grouped executions, also in groups that p_limit leaves out. is_more says that there may
-- be failed executions with lower ids that were not read.
--
-- first_at and last_at are the earliest and the latest end in the group. last_id and reason belong
-- to the execution with the highest id in the group.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_failures;
create function ff.list_failures(
  p_partition_key smallint,
  p_namespace     text,
  p_task          text default null,
  p_limit         integer default 100
)
returns table (
  task     text,
  category text,
  place    text,
  number   integer,
  first_at timestamptz,
  last_at  timestamptz,
  last_id  uuid,
  reason   text,
  seen     integer,
  is_more  boolean
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_most   constant integer := 2000;
  v_routes bigint[];
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  v_routes := array(
    select r.route_id from ff.route r
    where (p_task is null or r.task = p_task)
      and (p_namespace is null or r.namespace = p_namespace));
  return query
  with seen as materialized (
    select e.execution_id, e.route_id, e.failure_category, e.failure_place, e.failure_reason,
           e.terminal_at
    from ff.execution e
    where e.partition_key = p_partition_key and e.public_state = 'failed'
    order by e.execution_id desc
    limit v_most
  ),
  known as materialized (
    select r.route_id, r.task from ff.route r
    where r.route_id = any (v_routes)
    offset 0
  ),
  ours as materialized (
    select k.task, s.execution_id, s.failure_category, s.failure_place, s.failure_reason,
           s.terminal_at
    from seen s
    join known k on k.route_id = s.route_id
  )
  select o.task, o.failure_category, o.failure_place, count(*)::integer, min(o.terminal_at),
         max(o.terminal_at), (array_agg(o.execution_id order by o.execution_id desc))[1],
         (array_agg(o.failure_reason order by o.execution_id desc))[1],
         (select count(*)::integer from ours), (select count(*) >= v_most from seen)
  from ours o
  group by o.task, o.failure_category, o.failure_place
  order by count(*) desc, max(o.terminal_at) desc
  limit p_limit;
end;
$$;
