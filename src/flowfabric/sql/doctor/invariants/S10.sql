-- Numbers, sizes, tags and policies are within their limits.
--
-- This check repeats the CHECKs of the tables and the engine's checks of its input. It also reports
-- a constraint that was added `not valid`: PostgreSQL has not checked the older rows against it.
--
-- Holds:   always
-- Reads:   executions
-- Remedy:  For a constraint: `alter table … validate constraint …`. For a row: restore it from a
--          backup, or cancel the execution and submit it again.
select 'S10' as name, e.partition_key, e.execution_id,
       format('out of bounds: rank %s, epoch %s, version %s, attempt %s of %s, max_reclaims %s, '
              'blocking reason %s, payload %s, result %s bytes',
              e.rank, e.epoch, e.version, e.attempt_index + 1, e.total_attempt_count,
              e.max_reclaims, e.blocking_reason, octet_length(e.payload),
              octet_length(e.result)) as problem
from ff.execution e
where e.rank not between 0 and 9000 or e.epoch < 0 or e.version < 1 or e.max_reclaims < 0
   or least(e.retry_count, e.replay_count, e.reclaim_count, e.total_attempt_count) < 0
   or e.company_count not between 0 and e.reclaim_count
   or e.lone_crash_count not between 0 and e.crash_count
   or octet_length(e.payload) > 256 or octet_length(e.result) > 1048576
   or (e.result is not null and e.outcome <> 'success')
   or e.attempt_index <> greatest(e.total_attempt_count - 1, 0)
   or (e.attempt_id is null) <> (e.total_attempt_count = 0)
   or (e.blocking_reason <> 'none') <> (e.phase <> 'terminal' and e.ownership <> 'leased')
   or (e.reclaim_at is not null
       and e.ownership not in ('lease_expired_reclaimable', 'lease_revoked'))
   or (e.due_at is not null and e.phase = 'terminal')
   or e.progress_percent not between 0 and 100
   or (e.cancelled_by is not null) <> (e.outcome = 'cancelled')
union all
select 'S10', b.partition_key, b.execution_id,
       format('out of bounds: payload %s bytes, tags %s, policy %s', octet_length(b.payload),
              left(b.tags::text, 200), left(b.policy::text, 200))
from ff.execution_body b
join ff.execution e on e.partition_key = b.partition_key and e.execution_id = b.execution_id
where octet_length(b.payload) > case when starts_with(b.creator, 'hook:') then 4194304
                                     else 1048576 end
   -- A small payload is in the body only with a trace context or a generation.
   or (octet_length(b.payload) < 257 and b.trace_context is null and b.generation = 0)
   or (b.generation > 0 and e.payload is not null) or b.generation < 0
   or (b.payload is not null and e.payload is not null)
   or jsonb_typeof(b.tags) <> 'object'
   or exists (
     select from jsonb_each(case when jsonb_typeof(b.tags) = 'object' then b.tags end) t
     where t.key !~ '^[a-z][a-z0-9_]*[.][a-z0-9_][a-z0-9_.]*$' or jsonb_typeof(t.value) <> 'string')
   or jsonb_typeof(b.policy) <> 'object'
   or jsonb_typeof(b.policy -> 'max_replay_count') <> 'number'
   or jsonb_typeof(b.policy -> 'max_reclaim_count') <> 'number'
   or jsonb_typeof(b.policy -> 'retention_ms') <> 'number'
   or jsonb_typeof(b.policy #> '{timeout_policy,attempt_timeout_ms}') <> 'number'
   or jsonb_typeof(b.policy -> 'retry_policy') <> 'object'
   or jsonb_typeof(b.policy #> '{retry_policy,max_retries}') <> 'number'
union all
select 'S10', null, null, format('constraint %s of %s is not validated', c.conname, t.relname)
from pg_catalog.pg_constraint c
join pg_catalog.pg_class t on t.oid = c.conrelid
join pg_catalog.pg_namespace n on n.oid = t.relnamespace
where n.nspname = 'ff' and not c.convalidated
