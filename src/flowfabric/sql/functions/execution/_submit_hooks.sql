-- Submit the hooks of executions that have just ended, in the transaction of the end. A hook
-- becomes a new execution if it belongs to the task of an ended execution, and is for the outcome
-- of that execution. The caller has locked the ended executions.
--
-- The payload of a hook is a JSON object. It contains the outcome, the time and other facts of the
-- end, the arguments, the result and the error. Arguments and results that are encoded as JSON and
-- are valid JSON are copied as they are. Other bytes are copied as base64.
--
-- A hook gets the tags and the trace of the ended execution. The ended execution is its parent, but
-- the hook is not bound to it. A hook is stored even if its lane is closed, because an end cannot
-- be refused. If the task of the ended execution is itself a hook, no hooks are submitted.
--
-- Hooks are stored in batches of at most 100 hooks and about 32 MiB. PostgreSQL cannot build an
-- array above 1 GiB, and an end must not fail because it has many hooks.
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
  v_null   constant bytea := convert_to('null', 'UTF8');
  v_secret text;
  v_chunk  record;
  v_batch  record;
begin
  if coalesce(cardinality(p_ended_ids), 0) = 0
     or not exists (select from ff.hook h where h.removed_at is null) then
    return;
  end if;
  v_secret := coalesce((select m.value from ff.meta m where m.name = 'hook_secret'), '');
  for v_chunk in
    with ended as materialized (
      select x.execution_id, x.namespace, x.outcome, x.bytes, x.has_body, r.task, u.n
      from unnest(p_ended_ids) with ordinality u(id, n)
      cross join lateral (
        select e.execution_id, e.route_id, e.namespace, e.outcome, e.has_body,
               coalesce(octet_length(e.payload), 0) + coalesce(octet_length(e.result), 0)
               + coalesce(octet_length(e.failure_detail), 0) as bytes
        from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      join ff.route r on r.route_id = x.route_id
      where not exists (
        select from ff.hook o
        where o.namespace = r.namespace and o.name = r.task and o.removed_at is null
        offset 0)
    ),
    called as (
      select d.execution_id, d.namespace, d.n, h.name, row_number() over in_order as number,
             sum(d.bytes + coalesce(b.bytes, 0)) over in_order as bytes
      from ended d
      cross join lateral (
        select o.name from ff.hook o
        where o.namespace = d.namespace and o.task = d.task and o.removed_at is null
          and case when o.kind = 'end' then true
                   when o.kind = 'success' then d.outcome = 'success'
                   when o.kind = 'cancel' then d.outcome = 'cancelled'
                   else d.outcome not in ('success', 'cancelled') end
        offset 0) h
      left join lateral (
        select octet_length(o.payload) as bytes from ff.execution_body o
        where d.has_body and o.partition_key = p_partition_key
          and o.execution_id = d.execution_id
        offset 0) b on true
      window in_order as (partition by d.namespace order by d.n, h.name)
    )
    select c.namespace, array_agg(c.execution_id) as ended_ids, array_agg(c.name) as names
    from called c
    group by c.namespace, (c.number - 1) / 100, div(c.bytes, 33554432)
    order by c.namespace, min(c.number)
  loop
    -- Make the payload once: all hooks of an end get the same payload.
    with ended as materialized (
      select x.execution_id, x.replay_count, r.task, b.tags, b.trace_context,
             k.is_copied and a.encoding = 'json+inputs' as has_inputs,
             convert_to(left(f.facts::text, -1), 'UTF8')
             || convert_to(',"arguments":', 'UTF8')
             || case when a.arguments is null then v_null
                     when k.is_copied then a.arguments
                     else convert_to(to_json(encode(a.arguments, 'base64'))::text, 'UTF8') end
             || convert_to(',"result":', 'UTF8')
             || case when a.result is null then v_null
                     when k.is_result_copied then a.result
                     else convert_to(to_json(encode(a.result, 'base64'))::text, 'UTF8') end
             || convert_to('}', 'UTF8') as told
      from (select distinct i.id from unnest(v_chunk.ended_ids) i(id)) u
      cross join lateral (
        select e.execution_id, e.route_id, e.replay_count, e.outcome, e.terminal_at,
               e.total_attempt_count, e.failure_class, e.failure_category, e.failure_reason,
               e.failure_detail, e.cancelled_by, e.cancellation_reason, e.payload_encoding,
               e.payload, e.result_encoding, e.result, e.has_body
        from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.id
        offset 0) x
      join ff.route r on r.route_id = x.route_id
      left join lateral (
        select o.payload, o.tags, o.trace_context from ff.execution_body o
        where x.has_body and o.partition_key = p_partition_key
          and o.execution_id = x.execution_id
        offset 0) b on true
      cross join lateral (
        select coalesce(x.payload, b.payload) as arguments,
               coalesce(x.payload_encoding, 'json') as encoding,
               case when x.outcome = 'success' then x.result end as result,
               coalesce(x.result_encoding, 'json') as result_encoding
        offset 0) a
      cross join lateral (
        -- The submitter chose the encoding. Text that is not valid JSON could forge other fields.
        select case when a.arguments is null then true
                    when a.encoding in ('json', 'json+inputs') then ff._is_json(a.arguments)
                    else false end as is_copied,
               case when a.result is null then true
                    when a.result_encoding = 'json' then ff._is_json(a.result)
                    else false end as is_result_copied
        offset 0) k
      cross join lateral (
        select json_strip_nulls(json_build_object(
                 'execution_id', format('{fp:%s}:%s', p_partition_key, x.execution_id),
                 'task', r.task,
                 'outcome', x.outcome,
                 'ended_at', to_char(x.terminal_at at time zone 'UTC',
                                     'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                 'attempts', x.total_attempt_count,
                 'replay_count', x.replay_count,
                 'cancelled_by', x.cancelled_by,
                 'reason', x.cancellation_reason,
                 'error', case when x.outcome <> 'success' and x.failure_class is not null
                   then json_build_object(
                     'class', x.failure_class, 'category', x.failure_category,
                     'reason', x.failure_reason, 'detail', encode(x.failure_detail, 'base64')) end,
                 'arguments_encoding',
                 case when a.encoding <> 'json' or not k.is_copied then a.encoding end,
                 'result_encoding',
                 case when a.result_encoding <> 'json' or not k.is_result_copied
                   then a.result_encoding end)) as facts
        offset 0) f
    )
    select array_agg(ff._hook_id(v_secret, d.execution_id, d.replay_count, h.name)) as ids,
           array_agg(h.route_id) as route_ids,
           array_agg(h.priority) as priorities,
           array_agg(coalesce(h.options, '{}') || jsonb_strip_nulls(jsonb_build_object(
             'parent_id', d.execution_id, 'creator', 'hook:' || h.kind,
             'trace_context', d.trace_context,
             'tags', nullif(coalesce(d.tags, '{}') || coalesce(h.options -> 'tags', '{}'), '{}'))))
             as options,
           -- If the ended execution is a node of a flow, the worker fills in its inputs, as it did
           -- for the node.
           array_agg(case when d.has_inputs then 'json+ended' end) as encodings,
           array_agg(d.told) as payloads
      into v_batch
    from ended d
    cross join lateral (
      select o.name, o.kind, o.route_id, o.priority, o.options
      from unnest(v_chunk.ended_ids, v_chunk.names) c(id, name)
      join ff.hook o on o.namespace = v_chunk.namespace and o.task = d.task and o.name = c.name
      where c.id = d.execution_id
      offset 0) h;
    perform ff._store_executions(
      p_partition_key, v_chunk.namespace, '{}', v_batch.ids, v_batch.route_ids, v_batch.payloads,
      true, v_batch.encodings, v_batch.priorities, null, v_batch.options);
    perform ff._hint_ready(p_partition_key, v_batch.route_ids);
  end loop;
end;
$$;
