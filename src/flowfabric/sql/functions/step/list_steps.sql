-- List the recorded steps of executions. The steps of each execution come in the order in which
-- they started. An execution that has no steps, or does not exist, has no row.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_steps;
create function ff.list_steps(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[]
)
returns table (
  execution_id  uuid,
  name          text,
  occurrence    integer,
  "position"    integer,
  is_sequential boolean,
  kind          text,
  value         bytea,
  encoding      text,
  recorded_at   timestamptz,
  until_at      timestamptz,
  attempt_index integer,
  ready_at      timestamptz,
  taken_as      text
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
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_batch(cardinality(p_execution_ids), '{}');
  return query
  select s.execution_id, s.name, s.occurrence, s.position, s.is_sequential, s.kind::text, s.value,
         s.encoding, s.recorded_at, s.until_at, s.attempt_index, s.ready_at, s.taken_as
  from unnest(p_execution_ids) u(id)
  cross join lateral (
    select x.execution_id from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = u.id
      and case when p_namespace is null or x.namespace = p_namespace then true else false end
    offset 0
  ) e
  cross join lateral (
    select y.* from ff.step y
    where y.partition_key = p_partition_key and y.execution_id = e.execution_id
    offset 0
  ) s
  order by s.execution_id, s.position, s.name, s.occurrence;
end;
$$;
