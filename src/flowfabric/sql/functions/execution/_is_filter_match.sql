-- Tell whether an execution has the given namespace, lane and tags. A null filter matches
-- everything.
drop function if exists ff._is_filter_match;
create function ff._is_filter_match(
  p_partition_key   smallint,
  p_execution_id    uuid,
  p_namespace       text,
  p_route_id        bigint,
  p_only_namespace  text,
  p_only_lane       text,
  p_only_tags       jsonb
)
returns boolean
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  return (p_only_namespace is null or p_namespace = p_only_namespace)
    and (p_only_lane is null or exists (
      select from ff.route r where r.route_id = p_route_id and r.lane = p_only_lane))
    and (p_only_tags is null or exists (
      select from ff.execution_body b
      where b.partition_key = p_partition_key and b.execution_id = p_execution_id
        and case when b.tags @> p_only_tags then true else false end));
end;
$$;
