-- Subtract releases from the counters of gates, and open the lines of gates that have room now.
-- Return the gates that this call has locked. Gates that another transaction has locked are
-- skipped.
--
-- A release is a slot that was given back. A gate with a rate can also have room again because time
-- has passed.
--
-- The call handles these gates:
--
-- 1. If at most 100 lines of p_routes are closed: the gates of these lines.
-- 2. In every other case, also if p_routes is null: at most 100 gates that have releases and a
--    closed line, and at most 100 gates whose rate has room again.
--
-- In case 2, p_routes limits the choice to gates with a line of these routes, and p_namespace to
-- gates of this namespace. Null means no limit. The search for releases reads up to 1 000 gates. It
-- begins at a random id, because otherwise gates with high ids could wait for ever.
drop function if exists ff._fold_releases;
create function ff._fold_releases(
  p_partition_key smallint,
  p_routes        bigint[],
  p_now           timestamptz,
  p_namespace     text default null
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
declare
  v_start  constant bigint := floor(random() * 4611686018427387904)::bigint;
  v_asked  bigint[];
  v_closed bigint[];
  v_locked bigint[];
begin
  if p_routes is not null then
    v_closed := array(
      select y.gate_id from unnest(p_routes) r(id)
      cross join lateral (
        select x.gate_id from ff.line x
        where x.partition_key = p_partition_key and x.route_id = r.id
          and case when x.is_open then false else true end
        limit 101) y
      limit 101);
  end if;
  if cardinality(v_closed) <= 100 then
    v_asked := array(
      select u.id from unnest(v_closed) u(id)
      where exists (
        select from ff.gate_release r
        where r.partition_key = p_partition_key and r.gate_id = u.id offset 0)
      or exists (
        select from ff.gate g
        where g.partition_key = p_partition_key and g.gate_id = u.id
          and case when g.opens_at <= p_now then true else false end offset 0));
  else
    v_asked := array(
      -- After the highest id, the search continues with the lowest.
      with recursive released(gate_id, n, is_low) as (
        select v_start, 0, false
        where exists (select from ff.line y where y.partition_key = p_partition_key)
        union all
        select coalesce(x.gate_id, case when not g.is_low then (
                 select r.gate_id from ff.gate_release r
                 where r.partition_key = p_partition_key
                 order by r.gate_id limit 1) end),
               g.n + 1, g.is_low or x.gate_id is null
        from released g
        cross join lateral (
          select (select r.gate_id from ff.gate_release r
                  where r.partition_key = p_partition_key and r.gate_id > g.gate_id
                  order by r.gate_id limit 1) as gate_id) x
        where g.gate_id is not null and g.n < 1000 and not (g.is_low and g.gate_id > v_start)
      )
      select w.gate_id
      from (
        select g.gate_id from released g
        where g.n > 0 and g.gate_id is not null
          and case when p_namespace is null then true else exists (
                select from ff.gate k
                where k.partition_key = p_partition_key and k.gate_id = g.gate_id
                  and case when k.namespace = p_namespace then true else false end offset 0) end
          and exists (
            select from ff.line y
            where y.partition_key = p_partition_key and y.gate_id = g.gate_id
              and case when y.is_open then false else true end
              and case when p_routes is null then true else y.route_id = any (p_routes) end offset 0)
        limit 100) w
      union
      (select x.gate_id from ff.gate x
       where x.partition_key = p_partition_key and x.opens_at <= p_now
         and case when p_namespace is null then true else x.namespace = p_namespace end
         and case when p_routes is null then true else exists (
               select from ff.line y
               where y.partition_key = p_partition_key and y.gate_id = x.gate_id
                 and y.route_id = any (p_routes) offset 0) end
       order by x.opens_at
       limit 100));
  end if;
  if v_asked = '{}' then
    return '{}';
  end if;
  v_locked := ff._lock_gates(p_partition_key, v_asked, false);
  if v_locked = '{}' then
    return '{}';
  end if;
  -- This must be a new statement: it sees the releases that were committed before the locks.
  with given_back as (
    delete from ff.gate_release r
    where r.partition_key = p_partition_key and r.gate_id = any (v_locked)
    returning r.gate_id, r.slots
  )
  update ff.gate g set
    running = g.running - t.slots,
    opens_at = case when g.opens_at > p_now then g.opens_at end
  from (
    select p_partition_key as pk, u.id,
           coalesce((select sum(b.slots)::integer from given_back b where b.gate_id = u.id), 0)
             as slots
    from unnest(v_locked) u(id) offset 0) t
  where g.partition_key = t.pk and g.gate_id = t.id
    and (t.slots <> 0 or g.opens_at <= p_now);
  perform ff._write_lines(p_partition_key, v_locked, '{}', p_now);
  return v_locked;
end;
$$;
