-- Every end has submitted its hooks.
--
-- The end of an execution submits one execution for each hook that is in force for its task. This
-- check looks for the submitted execution. If that execution was trimmed, its events must still
-- exist. Executions of hooks have no hooks. Only executions that ended in the last 23 hours are
-- checked, because events can be trimmed after a day. Hooks that were declared less than 10 s
-- before the end are not checked.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  The hook did not run: look at the ended execution, and do the work of the hook by hand.
select 'H01' as name, e.partition_key, e.execution_id,
       format('ended as %s at %s without calling its hook %s', e.outcome, e.terminal_at, h.name)
         as problem
from ff.execution e
join ff.route r on r.route_id = e.route_id
join ff.hook h on h.namespace = r.namespace and h.task = r.task
cross join lateral (
  select encode(sha256(convert_to('hook', 'UTF8') || decode('00', 'hex')
                       || convert_to(coalesce((select m.value from ff.meta m
                                               where m.name = 'hook_secret'), ''), 'UTF8')
                       || uuid_send(e.execution_id) || int8send(e.replay_count)
                       || convert_to(h.name, 'UTF8')), 'hex') as digits
  offset 0
) d
cross join lateral (
  -- This is the computation of ff._hook_id, which only the engine may call.
  select (left(encode(uuid_send(e.execution_id), 'hex'), 12) || '8' || left(d.digits, 3)
          || substr('89ab89ab89ab89ab', strpos('0123456789abcdef', substr(d.digits, 5, 1)), 1)
          || substr(d.digits, 6, 15))::uuid as hook_id
  offset 0
) i
where e.phase = 'terminal' and h.removed_at is null
  and case h.kind when 'end' then true
                  when 'success' then e.outcome = 'success'
                  when 'cancel' then e.outcome = 'cancelled'
                  else e.outcome not in ('success', 'cancelled') end
  -- Allow 10 s: the transaction of the end may have begun before the hook was declared.
  and e.terminal_at > h.declared_at + interval '10 s'
  and e.terminal_at > (select ff.now()) - interval '23 h'
  -- A hook has no hooks.
  and not exists (
    select from ff.hook o
    where o.namespace = r.namespace and o.name = r.task and o.removed_at is null)
  and not exists (
    select from ff."execution" x
    where x.partition_key = e.partition_key and x.execution_id = i.hook_id)
  and not exists (
    select from ff."event" x
    where x.partition_key = e.partition_key and x.execution_id = i.hook_id)
