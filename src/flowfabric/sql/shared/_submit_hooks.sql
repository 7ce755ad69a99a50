-- Submit the hooks of executions that have just ended: one execution per hook of their task, in the
-- transaction of the end. The caller holds the row locks of the ended.
--
-- The payload of a hook is a JSON object: the facts of the end, the arguments, the result and the
-- error. What is JSON by its encoding is copied as it is, other bytes as base64. A hook gets the tags
-- and the trace of the ended execution, which is its parent, and does not end with it. It is stored
-- in a closed lane, too: an end cannot be refused. The end of a hook calls no hooks.
drop function if exists ff._submit_hooks;
create function ff._submit_hooks(p_partition_key smallint, p_ended_ids uuid[])
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_null  constant bytea := convert_to('null', 'UTF8');
  v_batch record;
begin
  if coalesce(cardinality(p_ended_ids), 0) = 0
     or not exists (select from ff.hook h where h.removed_at is null) then
    return;
  end if;
  for v_batch in
    with ended as materialized (
      select x.*, r.task, u.n
      from unnest(p_ended_ids) with ordinality u(id, n)
      cross join lateral (
        select e.execution_id, e.route_id, e.namespace, e.replay_count, e.outcome, e.terminal_at,
               e.total_attempt_count, e.attempt_ended_as, e.failure_class, e.failure_category,
               e.failure_reason, e.failure_detail, e.cancelled_by, e.cancellation_reason,
               e.payload_encoding, e.payload, e.result_encoding, e.result, e.has_body
        from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      join ff.route r on r.route_id = x.route_id
      where not exists (
        select from ff.hook o where o.namespace = r.namespace and o.name = r.task offset 0)
    ),
    called as materialized (
      select d.*, h.name, h.route_id as hook_route_id, h.priority,
             coalesce(h.options, '{}') || jsonb_strip_nulls(jsonb_build_object(
               'parent_id', d.execution_id, 'creator', 'hook:' || h.kind,
               'trace_context', b.trace_context,
               'tags', nullif(coalesce(b.tags, '{}') || coalesce(h.options -> 'tags', '{}'), '{}')))
               as options,
             coalesce(d.payload, b.payload) as arguments,
             coalesce(d.payload_encoding, 'json') as encoding
      from ended d
      cross join lateral (
        select o.name, o.kind, o.route_id, o.priority, o.options from ff.hook o
        where o.namespace = d.namespace and o.task = d.task and o.removed_at is null
          and case when o.kind = 'end' then true
                   when o.kind = 'success' then d.outcome = 'success'
                   when o.kind = 'cancel' then d.outcome = 'cancelled'
                   else d.outcome not in ('success', 'cancelled') end
        offset 0) h
      left join lateral (
        select o.payload, o.tags, o.trace_context from ff.execution_body o
        where d.has_body and o.partition_key = p_partition_key
          and o.execution_id = d.execution_id
        offset 0) b on true
    )
    select c.namespace,
           array_agg(ff._hook_id(c.execution_id, c.replay_count, c.name) order by c.n, c.name) as ids,
           array_agg(c.hook_route_id order by c.n, c.name) as route_ids,
           array_agg(c.priority order by c.n, c.name) as priorities,
           array_agg(c.options order by c.n, c.name) as options,
           -- The worker fills in the inputs of a flow's node, as for the node itself.
           array_agg(case when c.encoding = 'json+inputs' then 'json+ended' end
                     order by c.n, c.name) as encodings,
           array_agg(
             convert_to(left(f.facts::text, -1), 'UTF8')
             || convert_to(',"arguments":', 'UTF8')
             || case when c.arguments is null then v_null
                     when c.encoding in ('json', 'json+inputs') then c.arguments
                     else convert_to(to_json(encode(c.arguments, 'base64'))::text, 'UTF8') end
             || convert_to(',"result":', 'UTF8')
             || case when c.outcome <> 'success' or c.result is null then v_null
                     when coalesce(c.result_encoding, 'json') = 'json' then c.result
                     else convert_to(to_json(encode(c.result, 'base64'))::text, 'UTF8') end
             || convert_to('}', 'UTF8')
             order by c.n, c.name) as payloads
    from called c
    cross join lateral (
      select json_strip_nulls(json_build_object(
               'execution_id', format('{fp:%s}:%s', p_partition_key, c.execution_id),
               'task', c.task,
               'outcome', c.outcome,
               'ended_at', to_char(c.terminal_at at time zone 'UTC',
                                   'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
               'attempts', c.total_attempt_count,
               'replay_count', c.replay_count,
               'cancelled_by', c.cancelled_by,
               'reason', c.cancellation_reason,
               'error', case when c.outcome <> 'success' and c.failure_class is not null
                 then json_build_object(
                   'class', c.failure_class, 'category', c.failure_category,
                   'reason', c.failure_reason, 'detail', encode(c.failure_detail, 'base64')) end,
               'arguments_encoding', nullif(c.encoding, 'json'),
               'result_encoding', nullif(c.result_encoding, 'json'))) as facts
      offset 0) f
    group by c.namespace
  loop
    perform ff._store_executions(
      p_partition_key, v_batch.namespace, '{}', v_batch.ids, v_batch.route_ids, v_batch.payloads,
      true, v_batch.encodings, v_batch.priorities, null, v_batch.options);
    perform ff._hint_ready(p_partition_key, v_batch.route_ids);
  end loop;
end;
$$;
