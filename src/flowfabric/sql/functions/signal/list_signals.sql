-- List the signals that an execution has received, in the order in which waits take them. Signals
-- that no call has noticed yet come last. Returns nothing if the execution does not exist.
--
-- p_after is the id of the last signal of the previous page. If p_signal_ids is given, only these
-- signals are listed.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_signals;
create function ff.list_signals(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid,
  p_after         uuid default null,
  p_limit         integer default 100,
  p_signal_ids    uuid[] default null
)
returns table (
  signal_id        uuid,
  name             text,
  category         text,
  source_type      text,
  source_identity  text,
  correlation_id   text,
  payload          bytea,
  payload_encoding text,
  accepted_at      timestamptz,
  noticed_at       timestamptz,
  effect           text,
  taken_at         timestamptz,
  wait_name        text,
  wait_occurrence  integer,
  waitpoint_id     uuid
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
  v_after ff.signal;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  if p_after is not null then
    select g.* into v_after from ff.signal g
    where g.partition_key = p_partition_key and g.execution_id = p_execution_id
      and g.signal_id = p_after;
  end if;
  return query
  select g.signal_id, g.name, g.category, g.source_type, g.source_identity, g.correlation_id,
         g.payload, g.payload_encoding, g.accepted_at, g.noticed_at, g.effect, g.taken_at,
         g.wait_name, g.wait_occurrence, coalesce(g.waitpoint_id, g.answered_id)
  from ff.signal g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id
    and exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = p_execution_id
        and case when p_namespace is null then true else e.namespace = p_namespace end
      offset 0)
    and case when p_signal_ids is null then true else g.signal_id = any (p_signal_ids) end
    and (p_after is null or (coalesce(g.noticed_at, 'infinity'), g.signal_id)
                          > (coalesce(v_after.noticed_at, 'infinity'), p_after))
  order by coalesce(g.noticed_at, 'infinity'), g.signal_id
  limit p_limit;
end;
$$;
