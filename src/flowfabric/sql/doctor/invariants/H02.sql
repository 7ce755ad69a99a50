-- A task has at most 20 hooks, and the secret for hook ids exists.
--
-- ff.declare_hooks refuses a hook over the limit, but two calls at the same moment can together
-- exceed the limit. The secret has 64 hexadecimal digits. The id of a hook's execution is computed
-- from the id of the ended execution and from the secret. If the secret is missing, a caller can
-- compute this id, and can submit another execution with the id first. Then the hook does not run.
--
-- Holds:   always
-- Reads:   the database
-- Remedy:  Too many hooks: restart a worker of the app. The worker removes the hooks that the app
--          no longer declares. If there are still too many, delete the rows of unknown hooks in
--          the table ff.hook. No secret: insert 64 random hexadecimal digits into ff.meta with the
--          name hook_secret. The new secret changes the ids of all hooks' executions. So for a day,
--          H01 can report executions that ended before the change.
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
