-- Keep the result of a member before its replay, for the downstreams that were promised this
-- result. The caller has locked the member, so the satisfied edges from the member do not change
-- meanwhile.
drop function if exists ff._keep_result;
create function ff._keep_result(p_partition_key smallint, p_execution_id uuid)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  with item as materialized (
    select p_partition_key as pk, g.flow_id, g.edge_id, x.version
    from (
      select e.version from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = p_execution_id
        and case when e.outcome = 'success' then true else false end
      offset 0
    ) x
    cross join lateral (
      select o.flow_id, o.edge_id from ff.edge o
      where o.partition_key = p_partition_key and o.upstream_id = p_execution_id
        and case when o.resolution = 'satisfied' and o.kept_version is null
              then true else false end
      offset 0) g
    offset 0
  )
  update ff.edge g set kept_version = i.version
  from item i
  where g.partition_key = i.pk and g.flow_id = i.flow_id and g.edge_id = i.edge_id;
  if found then
    insert into ff.kept_result (partition_key, execution_id, version, result_encoding, result)
    select p_partition_key, e.execution_id, e.version, e.result_encoding, e.result
    from ff.execution e
    where e.partition_key = p_partition_key and e.execution_id = p_execution_id;
  end if;
end;
$$;
