-- Every quota and budget that an unfinished execution names has its gate.
--
-- If a gate is missing, the execution never starts, because a limit that cannot be read admits
-- nothing.
--
-- Holds:   always
-- Reads:   everything
-- Remedy:  Submit an execution under the same limit and key: the submit makes the gate again. Then
--          run doctor again. If Q01 reports the gate, follow the remedy of Q01.
select 'Q13' as name, e.partition_key, e.execution_id,
       format('names the %s %s, which does not exist',
              case when g.id < 4611686018427387904 then 'gate' else 'budget' end, g.id) as problem
from ff.execution e
cross join lateral unnest(e.quota_ids || e.budget_ids) g(id)
where e.phase <> 'terminal' and (e.quota_ids is not null or e.budget_ids is not null)
  and case when g.id < 4611686018427387904
        then not exists (
          select from ff.gate x where x.partition_key = e.partition_key and x.gate_id = g.id)
        else not exists (select from ff.budget b where b.budget_id = g.id) end
