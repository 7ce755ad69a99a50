-- Find the closed lines that submitted executions join. Lock these lines, so that nobody removes
-- them before the transaction ends. Returns the routes and the gates of these lines, as parallel
-- arrays.
--
-- A locked line can still open and close. A line that another transaction is removing is left out.
--
-- Only a READ COMMITTED transaction puts its executions into lines. At any other isolation level
-- this function returns no lines, so the executions are stored as eligible, and the next claim puts
-- them into line.
drop function if exists ff._lock_lines;
create function ff._lock_lines(
  p_partition_key smallint,
  p_route_ids     bigint[],
  p_gate_ids      bigint[],
  out route_ids   bigint[],
  out gate_ids    bigint[]
)
returns record
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    return;
  end if;
  select array_agg(l.route_id), array_agg(l.gate_id) into route_ids, gate_ids
  from (select distinct r.id from unnest(p_route_ids) r(id)) r
  cross join (select distinct g.id from unnest(p_gate_ids) g(id)) g
  cross join lateral (
    select y.route_id, y.gate_id from ff.line y
    where y.partition_key = p_partition_key and y.route_id = r.id and y.gate_id = g.id
      and not y.is_open
    for key share skip locked) l;
end;
$$;
