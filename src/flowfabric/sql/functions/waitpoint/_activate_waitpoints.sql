-- Note that a wait for waitpoints is open: they do not expire by themselves any more, and take values
-- of the type that the wait has declared. One that has no answer yet gets the oldest signal that was
-- sent by its name before there was a waitpoint. The caller holds the row lock of the execution.
drop function if exists ff._activate_waitpoints;
create function ff._activate_waitpoints(
  p_partition_key smallint,
  p_execution_id  uuid,
  p_waitpoint_ids uuid[],
  p_condition     jsonb,
  p_now           timestamptz
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_point record;
begin
  update ff.waitpoint w set
    activated_at = coalesce(w.activated_at, p_now),
    schema_id = o.schema_id
  from (
    select x.waitpoint_id, (jsonb_path_query_first(
             p_condition, 'strict $.** ? (@.waitpoint == $id).schema',
             jsonb_build_object('id', x.waitpoint_id), silent => true) #>> '{}')::bigint
             as schema_id
    from unnest(p_waitpoint_ids) x(waitpoint_id)
    offset 0) o
  where w.partition_key = p_partition_key and w.execution_id = p_execution_id
    and w.waitpoint_id = o.waitpoint_id and w.closed_at is null
    and (w.activated_at is null or w.schema_id is distinct from o.schema_id);
  for v_point in
    select w.waitpoint_id, w.key from ff.waitpoint w
    where w.partition_key = p_partition_key and w.execution_id = p_execution_id
      and w.waitpoint_id = any (p_waitpoint_ids) and w.closed_at is null
      and w.approval_id is null
      and not exists (
        select from ff.signal g
        where g.partition_key = p_partition_key and g.execution_id = p_execution_id
          and g.waitpoint_id = w.waitpoint_id and g.taken_at is null
        offset 0)
    order by w.created_at, w.waitpoint_id
  loop
    update ff.signal g set waitpoint_id = v_point.waitpoint_id
    from (
      select x.signal_id from ff.signal x
      where x.partition_key = p_partition_key and x.execution_id = p_execution_id
        and x.name = v_point.key and x.taken_at is null and x.noticed_at is not null
        and x.waitpoint_id is null
      order by x.noticed_at, x.signal_id
      limit 1) o
    where g.partition_key = p_partition_key and g.execution_id = p_execution_id
      and g.signal_id = o.signal_id
      and (g.dedup_key is null or not exists (
        select from ff.signal y
        where y.partition_key = p_partition_key and y.execution_id = p_execution_id
          and y.name = g.name and y.waitpoint_id = v_point.waitpoint_id
          and y.dedup_key = g.dedup_key
        offset 0));
  end loop;
end;
$$;
