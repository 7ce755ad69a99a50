-- Lock the flows of ended executions, and return the executions that can be deleted. An execution
-- can be deleted if it has no flow, or if all members of its flow have ended. The flows of these
-- executions are marked as trimmed.
--
-- Until the transaction ends, a locked flow gets no new member, and none of its members can be
-- replayed. The call does not wait. If another transaction has locked a flow, the members of that
-- flow are kept for now.
--
-- The caller has locked the executions.
drop function if exists ff._mark_trimmed_flows;
create function ff._mark_trimmed_flows(
  p_partition_key smallint,
  p_execution_ids uuid[],
  p_now           timestamptz
)
returns uuid[]
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_flows  uuid[];
  v_locked uuid[];
  v_free   uuid[];
begin
  v_flows := array(
    select distinct x.flow_id
    from unnest(p_execution_ids) u(id)
    cross join lateral (
      select e.flow_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
      offset 0) x
    where x.flow_id is not null
    order by x.flow_id);
  if cardinality(v_flows) = 0 then
    return p_execution_ids;
  end if;
  v_locked := array(
    select l.flow_id
    from unnest(v_flows) u(id)
    cross join lateral (
      select f.flow_id from ff.flow f
      where f.partition_key = p_partition_key and f.flow_id = u.id
      for update skip locked
    ) l);
  v_free := array(
    select u.id from unnest(v_locked) u(id)
    where not exists (
      select from ff.execution m
      where m.partition_key = p_partition_key and m.flow_id = u.id and m.phase <> 'terminal'));
  update ff.flow f set trimmed_at = p_now
  from (select p_partition_key as pk, u.id from unnest(v_free) u(id) offset 0) i
  where f.partition_key = i.pk and f.flow_id = i.id
    and case when f.trimmed_at is null then true else false end;
  return array(
    select u.id from unnest(p_execution_ids) u(id)
    cross join lateral (
      select e.flow_id from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
      offset 0) x
    where x.flow_id is null or x.flow_id = any (v_free));
end;
$$;
