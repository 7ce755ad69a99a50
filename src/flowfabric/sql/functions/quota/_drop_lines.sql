-- Remove at most p_limit open lines in which no execution waits, and return how many were removed.
-- A null namespace means all namespaces.
--
-- A line is not removed while another transaction has locked it. A submit or a claim locks a line
-- before it puts an execution into the line.
drop function if exists ff._drop_lines;
create function ff._drop_lines(
  p_partition_key smallint,
  p_limit         integer,
  p_namespace     text
)
returns integer
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_routes  bigint[];
  v_gates   bigint[];
  v_dropped integer;
begin
  select array_agg(l.route_id), array_agg(l.gate_id) into v_routes, v_gates
  from (
    select y.route_id, y.gate_id from ff.line y
    where y.partition_key = p_partition_key and y.route_id >= 0 and y.is_open
      and not exists (
        select from ff.execution e
        where e.partition_key = p_partition_key and e.line_id = y.gate_id
          and e.route_id = y.route_id offset 0)
      and case when p_namespace is null then true else exists (
            select from ff.route r
            where r.route_id = y.route_id
              and case when r.namespace = p_namespace then true else false end offset 0) end
    limit p_limit
    for update skip locked) l;
  -- This is a new statement, so it sees what was stored before the lock.
  delete from ff.line y
  using (select p_partition_key as pk, x.route_id, x.gate_id
         from unnest(v_routes, v_gates) x(route_id, gate_id) offset 0) u
  where y.partition_key = u.pk and y.route_id = u.route_id and y.gate_id = u.gate_id
    and not exists (
      select from ff.execution e
      where e.partition_key = p_partition_key and e.line_id = u.gate_id
        and e.route_id = u.route_id offset 0);
  get diagnostics v_dropped = row_count;
  return v_dropped;
end;
$$;
