-- A member whose edge groups are all satisfied does not wait for dependencies, and a member with
-- an impossible edge group has ended.
--
-- The transaction that satisfies the last group makes the member eligible. The transaction that
-- makes a group impossible ends the member: the member is skipped, or cancelled if its flow is
-- cancelled. Only a member on the backlog of a cancelled flow can end later. A skipped member has
-- an impossible group. If the replay of an upstream reopens that group, the member is replayed
-- too.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  `flowfabric cancel <id>` for an unfinished member; `flowfabric replay <id>` for a
--          skipped one.
select 'F09' as name, e.partition_key, e.execution_id,
       format('%s, with %s groups satisfied and %s impossible, of %s', e.public_state, c.satisfied,
              c.impossible, c.number) as problem
from (
  select g.partition_key, g.downstream_id, count(*) as number,
         count(*) filter (where g.state = 'satisfied') as satisfied,
         count(*) filter (where g.state = 'impossible') as impossible
  from ff.edge_group g
  group by g.partition_key, g.downstream_id
) c
join ff."execution" e
  on e.partition_key = c.partition_key and e.execution_id = c.downstream_id
where (c.impossible > 0 and e.phase <> 'terminal'
       and not exists (
         select from ff."cancel_backlog_member" m
         where m.partition_key = e.partition_key and m.flow_id = e.flow_id
           and m.execution_id = e.execution_id))
   or (c.impossible = 0 and e.outcome = 'skipped')
   or (c.satisfied = c.number and e.eligibility = 'blocked_by_dependencies'
       and e.wait_left is null)
union all
select 'F09', e.partition_key, e.execution_id, 'skipped, although it has no dependencies'
from ff.execution e
where e.outcome = 'skipped' and e.flow_id is not null
  and not exists (
    select from ff."edge_group" g
    where g.partition_key = e.partition_key and g.downstream_id = e.execution_id)
