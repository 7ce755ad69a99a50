-- Read one execution and the rows that belong to it, each as JSON: its route, body, grant,
-- attempts, steps, waits for runs, flow, edges, backlog and events. Payloads, results and other
-- long values are left out; some are replaced by their size in bytes.
select x.part, x.facts::text as facts
from (
  select 1 as number, 'execution' as part, 0::bigint as position,
         to_jsonb(e) - 'payload' - 'result' - 'failure_detail' || jsonb_build_object(
           'payload_bytes', octet_length(e.payload), 'result_bytes', octet_length(e.result),
           'failure_detail_bytes', octet_length(e.failure_detail)) as facts
  from ff.execution e
  where e.partition_key = $1::smallint and e.execution_id = $2::uuid
  union all
  select 2, 'route', 0, to_jsonb(r) || jsonb_build_object('lane_state', l.state)
  from ff.execution e
  join ff.route r on r.route_id = e.route_id
  left join ff.lane l on l.namespace = r.namespace and l.lane = r.lane
  where e.partition_key = $1::smallint and e.execution_id = $2::uuid
  union all
  select 3, 'body', 0, to_jsonb(b) - 'payload' || jsonb_build_object(
           'payload_bytes', octet_length(b.payload))
  from ff.execution_body b
  where b.partition_key = $1::smallint and b.execution_id = $2::uuid
  union all
  select 4, 'grant', 0, to_jsonb(g) - 'key_hash'
  from ff.grant g
  where g.partition_key = $1::smallint and g.execution_id = $2::uuid
  union all
  select 5, 'event_trim', 0, to_jsonb(t)
  from ff.event_trim t
  where t.partition_key = $1::smallint and t.execution_id = $2::uuid
  union all
  select 6, 'attempt', a.attempt_index, to_jsonb(a) - 'failure_detail'
  from ff.attempt a
  where a.partition_key = $1::smallint and a.execution_id = $2::uuid
  union all
  select 7, 'step', s.position, to_jsonb(s) - 'value' || jsonb_build_object(
           'value_bytes', octet_length(s.value))
  from ff.step s
  where s.partition_key = $1::smallint and s.execution_id = $2::uuid
  union all
  select 8, 'run_wait', 0, to_jsonb(w)
  from ff.run_wait w
  where w.partition_key = $1::smallint and w.waiter_id = $2::uuid
  union all
  select 9, 'flow', 0, to_jsonb(f)
  from ff.execution e
  join ff.flow f on f.partition_key = e.partition_key and f.flow_id = e.flow_id
  where e.partition_key = $1::smallint and e.execution_id = $2::uuid
  union all
  select 10, 'edge_group', g.group_no, to_jsonb(g)
  from ff.edge_group g
  where g.partition_key = $1::smallint and g.downstream_id = $2::uuid
  union all
  select 11, 'edge in', d.group_no, to_jsonb(d)
  from ff.edge d
  where d.partition_key = $1::smallint and d.downstream_id = $2::uuid
  union all
  select 12, 'edge out', d.group_no, to_jsonb(d)
  from ff.edge d
  where d.partition_key = $1::smallint and d.upstream_id = $2::uuid
  union all
  select 13, 'cancel_backlog', 0, to_jsonb(h)
  from ff.cancel_backlog_member m
  join ff.execution e on e.partition_key = m.partition_key and e.execution_id = m.execution_id
  left join ff.cancel_backlog h on h.partition_key = m.partition_key and h.flow_id = m.flow_id
  where m.partition_key = $1::smallint and m.flow_id = e.flow_id and m.execution_id = $2::uuid
  union all
  select 14, 'event', v.event_id, to_jsonb(v)
  from ff.event v
  where v.partition_key = $1::smallint and v.execution_id = $2::uuid
) x
order by x.number, x.position
