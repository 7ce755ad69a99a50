-- Read how executions ended. Unfinished and unknown executions are omitted.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.read_results;
create function ff.read_results(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_ids uuid[]
)
returns table (
  execution_id     uuid,
  public_state     text,
  terminal_at      timestamptz,
  attempt_index    integer,
  result_encoding  text,
  result           bytea,
  failure_class    text,
  failure_category text,
  failure_reason   text,
  failure_detail   bytea
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
  select e.execution_id, e.public_state::text, e.terminal_at, e.attempt_index, e.result_encoding,
         e.result, e.failure_class::text,
         case when e.cause = 'expire' then 'execution_deadline' else e.failure_category end,
         e.failure_reason, e.failure_detail
  from unnest(p_execution_ids) u(id)
  cross join lateral (
    select x.* from ff.execution x
    where x.partition_key = p_partition_key and x.execution_id = u.id
      and case when x.phase = 'terminal' and (p_namespace is null or x.namespace = p_namespace)
            then true else false end
    offset 0
  ) e;
end;
$$;
