-- Return the gates in p_gate_ids whose reservation is void. If p_of_starts is true, check reserved
-- starts, otherwise reserved slots.
--
-- An execution has a reservation while it waits in the line of another gate. The reservation is
-- void if the execution no longer waits there, or if its lane is closed to claims. It is also void
-- if the line has been open for 30 seconds: there may be no worker for the route.
--
-- Two more rules keep executions from waiting for each other. A reserved slot is valid only if the
-- other gate has a higher id, and if the line does not wait for a rate with a window over a minute.
-- A reserved start is valid only if the other gate has a higher id, or if the line waits for a
-- slot.
drop function if exists ff._read_void_reservations;
create function ff._read_void_reservations(
  p_partition_key smallint,
  p_gate_ids      bigint[],
  p_of_starts     boolean,
  p_now           timestamptz
)
returns bigint[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  return array(
    select u.id from unnest(p_gate_ids) u(id)
    cross join lateral (
      select case when p_of_starts then g.start_for else g.reserved_for end as execution_id
      from ff.gate g
      where g.partition_key = p_partition_key and g.gate_id = u.id offset 0) x
    where x.execution_id is not null and not exists (
      select from ff.execution e
      cross join lateral (
        select y.is_open, y.served_at from ff.line y
        where y.partition_key = p_partition_key and y.route_id = e.route_id
          and y.gate_id = e.line_id offset 0) y
      cross join lateral (
        select g.max_running, g.rate_window, g.opens_at from ff.gate g
        where g.partition_key = p_partition_key and g.gate_id = e.line_id offset 0) w
      cross join lateral (
        select r.namespace, r.lane from ff.route r where r.route_id = e.route_id offset 0) r
      cross join lateral (
        select l.state, l.resumes_at from ff.lane l
        where l.namespace = r.namespace and l.lane = r.lane offset 0) l
      where e.partition_key = p_partition_key and e.execution_id = x.execution_id
        and case when case when p_of_starts
                             then e.line_id > u.id
                                  or e.line_id < u.id and w.opens_at is null
                                     and w.max_running is not null
                             else e.line_id > u.id
                                  and (w.opens_at is null
                                       or w.rate_window <= interval '1 minute') end
                      and not (y.is_open and y.served_at < p_now - interval '30 seconds')
                      and (l.state in ('active', 'draining') or l.resumes_at <= p_now)
                   then true else false end
      offset 0));
end;
$$;
