-- An event is in the namespace of its execution.
--
-- Readers of a namespace see all of its events and no others. The route of an event is in that
-- namespace too, so that events can be checked after their execution was trimmed.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  A reader may have seen an event of another namespace, or missed an event of its own: let
--          the subscribers of both namespaces read their executions again. Find out who wrote the
--          event.
select 'O07' as name, v.partition_key, v.execution_id,
       format('%s events are in namespace %s, the last with version %s, but belong to %s',
              count(*), v.namespace, max(v.version),
              min(coalesce(e.namespace, f.namespace, r.namespace))) as problem
from ff.event v
left join ff.execution e on e.partition_key = v.partition_key and e.execution_id = v.execution_id
left join ff.flow f on f.partition_key = v.partition_key and f.flow_id = v.execution_id
left join ff.route r on r.route_id = v.route_id
where v.namespace <> coalesce(e.namespace, f.namespace, r.namespace) or v.namespace <> r.namespace
group by v.partition_key, v.execution_id, v.namespace
