-- Count the members of a flow by public state, and derive the state of the flow. The state is the
-- first of these that applies:
--
-- cancelled  the flow was cancelled
-- open       the flow has no members
-- completed  all members have ended, and no needed member failed, was cancelled or expired
-- failed     all members have ended, and a needed member failed, was cancelled or expired
-- running    a member is active
-- blocked    a member waits for something other than a worker
-- open       none of the above applies
--
-- A member is needed if no other member depends on it, or if a group with an edge from it was not
-- satisfied. The counts include all members.
drop function if exists ff._count_members;
create function ff._count_members(
  p_partition_key smallint,
  p_flow_id       uuid,
  p_is_cancelled  boolean,
  out state       text,
  out total       integer,
  out counts      jsonb
)
returns record
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
  select case
           when p_is_cancelled then 'cancelled'
           when count(*) = 0 then 'open'
           when bool_and(s.is_terminal) then
             case when not bool_or(s.state in ('failed', 'cancelled', 'expired')) then 'completed'
                  else 'failed' end
           when bool_or(s.state = 'active') then 'running'
           when bool_or(s.state in ('suspended', 'delayed', 'rate_limited', 'waiting_children'))
             then 'blocked'
           else 'open' end,
         coalesce(sum(s.size), 0), coalesce(jsonb_object_agg(s.state, s.size), '{}')
    into state, total, counts
  from (
    select e.public_state as state, e.phase = 'terminal' as is_terminal, count(*)::integer as size
    from ff.execution e
    where e.partition_key = p_partition_key and e.flow_id = p_flow_id
    group by e.public_state, e.phase = 'terminal') s;
  if state = 'failed' and not exists (
       select from ff.execution e
       where e.partition_key = p_partition_key and e.flow_id = p_flow_id
         and case when e.outcome in ('failed', 'cancelled', 'expired') then true else false end
         and (select coalesce(bool_or(y.state <> 'satisfied'), true)
              from ff.edge g
              cross join lateral (
                select z.state from ff.edge_group z
                where z.partition_key = p_partition_key and z.downstream_id = g.downstream_id
                  and z.group_no = g.group_no
                offset 0) y
              where g.partition_key = p_partition_key and g.upstream_id = e.execution_id)) then
    state := 'completed';
  end if;
end;
$$;
