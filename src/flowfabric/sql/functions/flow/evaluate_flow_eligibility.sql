-- Tell whether the dependencies of an execution allow a claim. Returns the first of these words
-- that applies: not_found, not_runnable, impossible, blocked_by_dependencies, eligible. A leased or
-- ended execution is not_runnable.
--
-- Moves:    nothing
-- Refuses:  (nothing)
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.evaluate_flow_eligibility;
create function ff.evaluate_flow_eligibility(
  p_partition_key smallint,
  p_namespace     text,
  p_execution_id  uuid
)
returns table (eligibility text)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  select case
           -- Constraints of the schema exclude `owned` and `terminal` here.
           when e.phase <> 'runnable' then 'not_runnable'
           when e.ownership <> 'unowned' then 'owned'
           when e.outcome <> 'none' then 'terminal'
           when exists (
             select from ff.edge_group y
             where y.partition_key = p_partition_key and y.downstream_id = p_execution_id
               and case when y.state = 'impossible' then true else false end) then 'impossible'
           when exists (
             select from ff.edge_group y
             join ff.edge g on g.partition_key = p_partition_key
               and g.downstream_id = y.downstream_id and g.group_no = y.group_no
             where y.partition_key = p_partition_key and y.downstream_id = p_execution_id
               and case when y.state = 'pending' and g.resolution = 'unsatisfied'
                     then true else false end) then 'blocked_by_dependencies'
           else 'eligible' end
    into eligibility
  from ff.execution e
  where e.partition_key = p_partition_key and e.execution_id = p_execution_id
    and case when p_namespace is null then true else e.namespace = p_namespace end;
  eligibility := coalesce(eligibility, 'not_found');
  return next;
end;
$$;
