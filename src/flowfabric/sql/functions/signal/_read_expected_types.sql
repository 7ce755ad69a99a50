-- Return, for each signal, the id of the schema that its value must fit. Null means that any value
-- is accepted. The open waits for the name of the signal have declared the schema. If they have
-- declared several, the smallest id is returned. A null in p_names stands for a signal that is
-- sent by token, and gets null.
--
-- If there are already enough untaken signals of the name for all open waits, the next signal is
-- for a later wait. The schema of that wait is not known yet, so null is returned.
drop function if exists ff._read_expected_types;
create function ff._read_expected_types(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_names         text[]
)
returns bigint[]
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
    select case when t.schema_id is not null and t.room > (
             select count(*) from (
               select from ff.signal g
               where g.partition_key = p_partition_key and g.execution_id = u.id
                 and g.name = u.name and g.taken_at is null and g.waitpoint_id is null
               limit t.room) c) then t.schema_id end
    from unnest(p_execution_ids, p_names) with ordinality u(id, name, n)
    cross join lateral (
      select min(r.schema_id) as schema_id, sum(r.room) as room
      from (
        select (jsonb_path_query_first(
                  x.condition, 'strict $.** ? (@.signal == $name).schema', v.names,
                  silent => true) #>> '{}')::bigint as schema_id,
               case when jsonb_path_exists(
                           x.condition, 'strict $.** ? (exists (@.at_least)).of[*].signal'
                           ' ? (@ == $name)', v.names, silent => true) then 10000
                    when jsonb_path_exists(
                           x.condition, 'strict $.** ? (@.signal == $name)', v.names,
                           silent => true) then 1
                    else 0 end as room
        from ff.step x
        cross join lateral (select jsonb_build_object('name', u.name) as names) v
        where x.partition_key = p_partition_key and x.execution_id = u.id
          and x.kind = 'wait' and x.taken_as is distinct from 'signals'
          and x.taken_as is null and x.opened_at is not null
        union all
        select x.schema_id, 1
        from ff.waitpoint x
        where x.partition_key = p_partition_key and x.execution_id = u.id
          and x.key = u.name and x.closed_at is null and x.activated_at is not null
          and x.approval_id is null
          and not exists (
            select from ff.signal g
            where g.partition_key = p_partition_key and g.execution_id = u.id
              and g.waitpoint_id = x.waitpoint_id and g.taken_at is null
            offset 0)) r
      where u.name is not null and r.room > 0
      offset 0) t
    order by u.n);
end;
$$;
