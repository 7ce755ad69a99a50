-- A line is closed only while its gate or budget gives a reason.
--
-- One of five reasons is enough. (1) All slots of the gate are taken. A slot that is reserved for
-- an execution in line counts as taken. (2) The rate of the gate has no room until a known time,
-- and no execution in the line could resume an attempt. (A resumed attempt does not count as a
-- start.) (3) A start is reserved for an execution in line. (4) A slot was given back to the gate,
-- and no claim has counted it yet. (5) The budget is shut.
--
-- Holds:   soon, within 15 s. A finding is a warning. It is an error after 150 s, but only if
--          a worker is alive
-- Reads:   everything
-- Remedy:  `flowfabric quota set` with the present limit makes the next claim look at the gate
--          again.
select 'Q04' as name, y.partition_key, null::uuid as execution_id,
       format('the line of %s has been closed since %s, but nothing closes it',
              coalesce('quota ' || g.quota, 'budget ' || b.budget, 'an unknown gate'), y.served_at)
         as problem,
       y.served_at < ff.now() - interval '150 s' and exists (
         select from ff.worker w
         where w.heartbeat_at + w.liveness_ttl > ff.now()
           and w.namespace in ('', coalesce(g.namespace, b.namespace, ''))) as is_stuck
from ff.line y
left join ff.gate g on g.partition_key = y.partition_key and g.gate_id = y.gate_id
left join ff.budget b on b.budget_id = y.gate_id
where not y.is_open and y.served_at < ff.now() - interval '15 s'
  and coalesce(b.is_shut, false) is not true
  and not coalesce(
    g.running >= g.max_running - case when exists (
      select from ff.execution e
      where e.partition_key = g.partition_key and e.execution_id = g.reserved_for
        and e.line_id is not null) then 1 else 0 end
    or g.opens_at is not null and not exists (
      select from ff.execution e
      where e.partition_key = y.partition_key and e.line_id = y.gate_id
        and e.route_id = y.route_id
        and e.phase = 'runnable' and e.attempt_state = 'attempt_interrupted')
    or exists (
      select from ff.execution e
      where e.partition_key = g.partition_key and e.execution_id = g.start_for
        and e.line_id is not null), false)
  and not exists (
    select from ff.gate_release r
    where r.partition_key = y.partition_key and r.gate_id = y.gate_id)
