-- The journal of an execution: the steps its runs have recorded, in the order they were started. One
-- that is not there has none.
--
-- Moves:    nothing
-- Refuses:  (nothing)
-- Locks:    none
-- Replay:   idempotent by nature
drop function if exists ff.list_steps;
create function ff.list_steps(p_partition_key smallint, p_namespace text, p_execution_id uuid)
returns table (
  name          text,
  occurrence    integer,
  "position"    integer,
  is_sequential boolean,
  kind          text,
  value         bytea,
  encoding      text,
  recorded_at   timestamptz,
  until_at      timestamptz,
  attempt_index integer
)
language plpgsql
stable
security definer
set search_path = ''
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
  return query
  select s.name, s.occurrence, s.position, s.is_sequential, s.kind::text, s.value, s.encoding,
         s.recorded_at, s.until_at, s.attempt_index
  from ff.step s
  where s.partition_key = p_partition_key and s.execution_id = p_execution_id
    and exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = p_execution_id
        and (p_namespace is null or e.namespace = p_namespace))
  order by s.position, s.name, s.occurrence;
end;
$$;
