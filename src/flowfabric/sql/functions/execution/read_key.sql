-- Find the execution that a submit with an idempotency key would return now. Returns no row if the
-- key is not in force, or if its execution was trimmed.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.read_key;
create function ff.read_key(
  p_partition_key smallint,
  p_namespace     text,
  p_key           text
)
returns table (execution_id uuid, task text)
language plpgsql
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
  v_now timestamptz := ff.now();
begin
  perform ff._check_namespace(p_namespace);
  if p_namespace is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'namespace', 'problem', 'must not be null: a key belongs to one namespace'));
  end if;
  return query
  select k.execution_id, r.task
  from ff.idempotency_key k
  join ff.execution e on e.partition_key = p_partition_key and e.execution_id = k.execution_id
  join ff.route r on r.route_id = e.route_id
  where k.partition_key = p_partition_key and k.namespace = p_namespace and k.key = p_key
    and case k.scope when 'window' then k.expires_at > v_now else e.phase <> 'terminal' end;
end;
$$;
