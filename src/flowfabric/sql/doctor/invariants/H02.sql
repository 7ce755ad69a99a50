-- Hooks are within their limits.
--
-- A task has at most 20 hooks. ff.declare_hooks refuses more, but two calls at the same moment do
-- not see each other. The ids of hooks are derived with a secret of 64 hex digits. Without the
-- secret, a caller who knows the id of an execution could compute the id of its hook and take it.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  For a task: start its worker again, which removes undeclared hooks; otherwise
--          delete hooks that you do not know from ff.hook. For the secret: insert 64 random
--          hexadecimal digits as hook_secret into ff.meta; H01 may report ends of the last day.
select 'H02' as name, null::smallint as partition_key, null::uuid as execution_id,
       format('%s hooks of the task %s in namespace %s are in force', count(*), h.task,
              h.namespace) as problem
from ff.hook h
where h.removed_at is null
group by h.namespace, h.task
having count(*) > 20
union all
select 'H02', null, null, 'ff.meta holds no hook_secret of 64 hexadecimal digits'
where not exists (
  select from ff.meta m where m.name = 'hook_secret' and m.value ~ '^[0-9a-f]{64}$')
