-- Find the cycle that an edge from p_upstream_id to p_downstream_id would close. Returns its ids:
-- the downstream, the members along existing edges to the upstream, and the downstream again.
-- Returns null if there is no cycle. Returns the single word cycle_check_limit if the search would
-- read more than p_limit members.
drop function if exists ff._find_cycle;
create function ff._find_cycle(
  p_partition_key smallint,
  p_upstream_id   uuid,
  p_downstream_id uuid,
  p_limit         integer default 10000
)
returns text[]
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_size  integer;
  v_found boolean;
  v_back  uuid[];
  v_at    uuid := p_downstream_id;
  v_path  uuid[];
begin
  with recursive reached(id) as (
    select p_downstream_id
    union
    select g.downstream_id
    from reached r
    cross join lateral (
      select o.downstream_id from ff.edge o
      where o.partition_key = p_partition_key and o.upstream_id = r.id
      offset 0) g
  )
  select count(*), coalesce(bool_or(x.id = p_upstream_id), false) into v_size, v_found
  from (select r.id from reached r limit p_limit + 1) x;
  if not v_found then
    return case when v_size > p_limit then array['cycle_check_limit'] end;
  end if;

  -- Read all ancestors of the upstream: the members from which a path leads to it.
  with recursive reached(id) as (
    select p_upstream_id
    union
    select g.upstream_id
    from reached r
    cross join lateral (
      select o.upstream_id from ff.edge o
      where o.partition_key = p_partition_key and o.downstream_id = r.id
      offset 0) g
  )
  select array_agg(r.id) into v_back from reached r;
  v_path := array[v_at];
  while v_at <> p_upstream_id and cardinality(v_path) < 100 loop
    select o.downstream_id into v_at from ff.edge o
    where o.partition_key = p_partition_key and o.upstream_id = v_at
      and o.downstream_id = any (v_back)
    order by o.downstream_id <> p_upstream_id
    limit 1;
    v_path := v_path || v_at;
  end loop;
  return array(select format('{fp:%s}:%s', p_partition_key, u.id)
               from unnest(v_path || p_downstream_id) with ordinality u(id, n) order by u.n);
end;
$$;
