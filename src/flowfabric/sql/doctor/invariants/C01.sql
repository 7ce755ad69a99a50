-- While an execution waits for runs, ff.run_wait lists these runs. At other times ff.run_wait
-- lists no runs for the execution.
--
-- All listed runs belong to the current wait. The number of runs that have not ended is at least
-- the number that the execution still needs.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  `flowfabric cancel <id>`, then `flowfabric replay <id>`: the handler waits again.
select 'C01' as name, e.partition_key, e.execution_id,
       format('waits for %s runs; %s of %s runs have not ended (wait %s)', e.wait_left, w.open,
              w.number, e.wait_no) as problem
from ff.execution e
cross join lateral (
  select count(*) as number, count(*) filter (where x.ended_at is null) as open,
         count(*) filter (where x.wait_no <> e.wait_no) as others
  from ff.run_wait x
  where x.partition_key = e.partition_key and x.waiter_id = e.execution_id
) w
where e.public_state in ('waiting_children', 'suspended') and e.wait_left is not null
  and (e.wait_left not between 1 and w.open or w.others > 0)
union all
select 'C01', w.partition_key, w.waiter_id,
       format('%s awaited runs are recorded, but %s', count(*),
              case when e.execution_id is null then 'the execution is gone'
                   else 'it waits for none' end)
from ff.run_wait w
left join ff.execution e on e.partition_key = w.partition_key and e.execution_id = w.waiter_id
where e.wait_left is null
group by w.partition_key, w.waiter_id, e.execution_id
