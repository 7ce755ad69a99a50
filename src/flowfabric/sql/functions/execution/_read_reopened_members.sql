-- Return the members that the replay of a member can reach, and the member itself. The search
-- follows impossible edges downstream: edges whose upstream ended without success. The search
-- continues beyond a member only if that member was skipped.
drop function if exists ff._read_reopened_members;
create function ff._read_reopened_members(p_partition_key smallint, p_execution_id uuid)
returns uuid[]
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
  return array(
    with recursive reached as (
      select p_execution_id as id, true as goes_on
      union
      select g.downstream_id, e.outcome = 'skipped'
      from reached r
      cross join lateral (
        select o.downstream_id from ff.edge o
        where o.partition_key = p_partition_key and o.upstream_id = r.id
          and case when o.resolution = 'impossible' then true else false end
        offset 0) g
      cross join lateral (
        select x.outcome from ff.execution x
        where x.partition_key = p_partition_key and x.execution_id = g.downstream_id
        offset 0) e
      where r.goes_on
    )
    select r.id from reached r order by r.id);
end;
$$;
