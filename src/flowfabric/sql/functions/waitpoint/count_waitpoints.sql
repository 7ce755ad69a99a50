-- Count the open waitpoints of unfinished executions in a partition. Returns one row for each hmac
-- key that signs their tokens. At most 100 000 waitpoints are counted.
--
-- Moves:    nothing
-- Refuses:  WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   operator
drop function if exists ff.count_waitpoints;
create function ff.count_waitpoints(p_partition_key smallint, p_namespace text default null)
returns table (kid text, number bigint)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_operator('count_waitpoints');
  perform ff._check_namespace(p_namespace);
  return query
  select o.kid, count(*)
  from (
    select w.kid from ff.waitpoint w
    where w.partition_key = p_partition_key and w.closed_at is null
      and exists (
        select from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = w.execution_id
          and e.phase <> 'terminal' and case when p_namespace is null then true else e.namespace = p_namespace end
        offset 0)
    limit 100000) o
  group by o.kid;
end;
$$;
