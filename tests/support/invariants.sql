-- What must hold of every committed state, as one query: no row means all is well. The names are
-- those of the reliability plan; S is the state vector, L leases and attempts, O the event log,
-- D idempotency. Events are never trimmed in test databases.
create function ff_test.broken_invariants()
returns table (name text, partition_key smallint, execution_id uuid, problem text)
language sql
stable
as $$

select 'S01', e.partition_key, e.execution_id,
       format('terminal, outcome and terminal_at disagree: %s, %s, %s',
              e.phase, e.outcome, e.terminal_at)
from ff.execution e
where (e.phase = 'terminal') <> (e.outcome <> 'none')
   or (e.phase = 'terminal') <> (e.terminal_at is not null)

union all
select 'S02', e.partition_key, e.execution_id,
       format('ownership %s does not fit phase %s', e.ownership, e.phase)
from ff.execution e
where (e.phase = 'active') = (e.ownership = 'unowned')

union all
select 'S03', e.partition_key, e.execution_id,
       format('eligibility %s does not fit phase %s', e.eligibility, e.phase)
from ff.execution e
where (e.phase = 'runnable') = (e.eligibility = 'not_applicable')
   or e.phase = 'submitted' or e.eligibility = 'blocked_by_lane_state'

union all
select 'S04', e.partition_key, e.execution_id,
       format('%s, but %s of 4 lease columns are set', e.ownership,
              num_nonnulls(e.lease_id, e.lease_expires_at, e.worker_id, e.worker_instance_id))
from ff.execution e
where num_nonnulls(e.lease_id, e.lease_expires_at, e.worker_id, e.worker_instance_id)
      <> case when e.ownership in ('leased', 'lease_expired_reclaimable') then 4 else 0 end
   or (e.ownership in ('leased', 'lease_expired_reclaimable') and e.attempt_id is null)

union all
select 'S05', e.partition_key, e.execution_id,
       format('%s, delayed until %s, due %s', e.eligibility, e.delayed_until, e.due_at)
from ff.execution e
where (e.eligibility = 'not_eligible_until_time') <> (e.delayed_until is not null)
   -- due_at is a lower bound of every armed timer, else nobody would come
   or coalesce(e.due_at, 'infinity') > least(
        e.delayed_until, e.reclaim_at,
        case when e.ownership = 'leased' then e.lease_expires_at end)

union all
select 'S06', e.partition_key, e.execution_id,
       format('attempt state %s does not fit %s, %s, %s attempts', e.attempt_state, e.phase,
              e.ownership, e.total_attempt_count)
from ff.execution e
where case
    when e.phase = 'active' and e.ownership = 'leased' then e.attempt_state <> 'running_attempt'
    when e.phase in ('active', 'suspended') then e.attempt_state <> 'attempt_interrupted'
    when e.phase = 'terminal' then
      e.attempt_state <> case when e.total_attempt_count > 0 or e.replay_count > 0
                                then 'attempt_terminal'::ff.attempt_state
                              else 'pending_first_attempt' end
    when e.attempt_state = 'pending_first_attempt' then e.total_attempt_count > 0
    when e.attempt_state in ('attempt_interrupted', 'pending_retry_attempt')
      then e.total_attempt_count = 0
    when e.attempt_state = 'pending_replay_attempt' then e.replay_count = 0
    else true
  end

union all
select 'S07', e.partition_key, e.execution_id,
       format('public state %s, derived %s', e.public_state, d.public_state)
from ff.execution e
cross join lateral (
  select case
      when e.phase = 'terminal' and e.outcome = 'success' then 'completed'
      when e.phase = 'terminal' and e.outcome = 'none' then 'failed'
      when e.phase = 'terminal' then e.outcome::text
      when e.phase in ('suspended', 'active') then e.phase::text
      when e.eligibility = 'not_eligible_until_time' then 'delayed'
      when e.eligibility = 'blocked_by_dependencies' then 'waiting_children'
      when e.eligibility in ('blocked_by_budget', 'blocked_by_quota') then 'rate_limited'
      else 'waiting'
    end as public_state) d
where e.public_state::text <> d.public_state

union all
select 'S08', e.partition_key, e.execution_id,
       format('created %s, started %s, transitioned %s, mutated %s, ended %s', e.created_at,
              e.started_at, e.transitioned_at, e.mutated_at, e.terminal_at)
from ff.execution e
where e.started_at < e.created_at
   or e.transitioned_at < e.created_at
   or e.mutated_at < e.transitioned_at
   or e.terminal_at < coalesce(e.started_at, e.created_at)
   or e.attempt_started_at < e.started_at
   or e.attempt_ended_at < e.attempt_started_at
   or e.lease_expires_at < e.attempt_started_at
   or (e.started_at is null) <> (e.total_attempt_count = 0)

union all
select 'S09', e.partition_key, e.execution_id, 'the partition does not exist'
from ff.execution e
where e.partition_key not between 0 and (
  select m.value::smallint - 1 from ff.meta m where m.name = 'partitions')
union all
select 'S09', a.partition_key, a.execution_id, 'an attempt of no execution'
from ff.attempt a
where not exists (
  select from ff.execution e
  where e.partition_key = a.partition_key and e.execution_id = a.execution_id)
union all
select 'S09', b.partition_key, b.execution_id, 'a body of no execution'
from ff.execution_body b
where not exists (
  select from ff.execution e
  where e.partition_key = b.partition_key and e.execution_id = b.execution_id)
union all
select 'S09', v.partition_key, v.execution_id, 'an event of no execution'
from ff.event v
where not exists (
    select from ff.execution e
    where e.partition_key = v.partition_key and e.execution_id = v.execution_id)
  and not exists (
    select from ff_test.forgotten f
    where f.partition_key = v.partition_key and f.execution_id = v.execution_id)
union all
select 'S09', e.partition_key, e.execution_id, 'its route or lane is unknown in its namespace'
from ff.execution e
where not exists (
  select from ff.route r join ff.lane l on l.lane = r.lane
  where r.route_id = e.route_id and r.namespace = e.namespace)

union all
select 'S10', e.partition_key, e.execution_id,
       format('out of bounds: rank %s, epoch %s, version %s, max_reclaims %s, payload %s, result %s',
              e.rank, e.epoch, e.version, e.max_reclaims, octet_length(e.payload),
              octet_length(e.result))
from ff.execution e
where e.rank not between 0 and 9000 or e.epoch < 0 or e.version < 1 or e.max_reclaims < 0
   or least(e.retry_count, e.replay_count, e.reclaim_count, e.total_attempt_count) < 0
   or octet_length(e.payload) > 256 or octet_length(e.result) > 1048576
   or (e.result is not null and e.outcome <> 'success')
   or e.attempt_index <> greatest(e.total_attempt_count - 1, 0)
   or (e.attempt_id is null) <> (e.total_attempt_count = 0)
   or (e.blocking_reason <> 'none') <> (e.phase <> 'terminal' and e.ownership <> 'leased')
   or (e.reclaim_at is not null
       and e.ownership not in ('lease_expired_reclaimable', 'lease_revoked'))
   or (e.due_at is not null and e.phase = 'terminal')
union all
select 'S10', e.partition_key, e.execution_id, 'out of bounds: body or tags'
from ff.execution_body b
join ff.execution e on e.partition_key = b.partition_key and e.execution_id = b.execution_id
where octet_length(b.payload) not between 257 and 1048576
   or (b.payload is not null and e.payload is not null)
   or ff._tags_problem(b.tags::text) is not null
   or ff._policy_problem(b.policy::text) is not null
union all
select 'S10', null, null, format('constraint %s of %s is not validated', c.conname, t.relname)
from pg_catalog.pg_constraint c
join pg_catalog.pg_class t on t.oid = c.conrelid
where t.relnamespace = 'ff'::regnamespace and not c.convalidated

union all
select 'L01', e.partition_key, e.execution_id,
       format('history %s of an execution with %s attempts', h.indexes, e.total_attempt_count)
from ff.execution e
cross join lateral (
  select coalesce(array_agg(a.attempt_index order by a.attempt_index), '{}') as indexes
  from ff.attempt a
  where a.partition_key = e.partition_key and a.execution_id = e.execution_id) h
where h.indexes <> array(select g from generate_series(0, e.total_attempt_count - 2) g)

union all
select 'L02', e.partition_key, e.execution_id,
       format('%s with lease %s, expiry %s', e.ownership, e.lease_id, e.lease_expires_at)
from ff.execution e
where (e.ownership in ('leased', 'lease_expired_reclaimable'))
      <> (e.lease_id is not null and e.lease_expires_at is not null)
union all
select 'L02', l.partition_key, l.execution_id, format('lease %s was given twice', l.lease_id)
from (
  select e.partition_key, e.execution_id, e.lease_id from ff.execution e
  union all
  select e.partition_key, e.execution_id, e.last_lease_id from ff.execution e
  union all
  select a.partition_key, a.execution_id, a.last_lease_id from ff.attempt a
) l
where l.lease_id is not null
group by l.partition_key, l.execution_id, l.lease_id
having count(*) > 1

union all
select 'L03', l.partition_key, l.execution_id, format('attempt id %s was used twice', l.attempt_id)
from (
  select e.partition_key, e.execution_id, e.attempt_id from ff.execution e
  union all
  select a.partition_key, a.execution_id, a.attempt_id from ff.attempt a
) l
where l.attempt_id is not null
group by l.partition_key, l.execution_id, l.attempt_id
having count(*) > 1

union all
select 'L05', l.partition_key, l.execution_id,
       format('epoch %s of attempt %s is followed by %s', l.epoch, l.attempt_index, l.next_epoch)
from (
  select x.partition_key, x.execution_id, x.attempt_index, x.epoch,
         lead(x.epoch) over (
           partition by x.partition_key, x.execution_id order by x.attempt_index) as next_epoch
  from (
    select a.partition_key, a.execution_id, a.attempt_index, a.epoch from ff.attempt a
    union all
    select e.partition_key, e.execution_id, e.attempt_index, e.epoch from ff.execution e
    where e.total_attempt_count > 0
  ) x
) l
where l.next_epoch <= l.epoch
union all
select 'L05', v.partition_key, v.execution_id, format('epoch %s was given twice', v.epoch)
from ff.event v
where v.kind in ('claimed', 'resumed', 'reclaimed')
group by v.partition_key, v.execution_id, v.epoch
having count(*) > 1

union all
select 'L07', e.partition_key, e.execution_id,
       format('%s retries, %s reclaims, %s replays are over a limit', e.retry_count,
              e.reclaim_count, e.replay_count)
from ff.execution e
left join ff.execution_body b
  on b.partition_key = e.partition_key and b.execution_id = e.execution_id
where e.reclaim_count > e.max_reclaims
   or e.retry_count > case when b.policy ? 'retry_policy'
        then coalesce((b.policy #>> '{retry_policy,max_retries}')::numeric, 3) else 0 end
   or e.replay_count > coalesce((b.policy ->> 'max_replay_count')::numeric, 10)

union all
select 'L08', e.partition_key, e.execution_id,
       format('%s, attempt ended %s as %s', e.attempt_state, e.attempt_ended_at, e.attempt_ended_as)
from ff.execution e
where (e.attempt_ended_at is null) <> (e.attempt_ended_as is null)
   or (e.attempt_ended_at is not null) <> (
        e.total_attempt_count > 0 and e.attempt_state in (
          'attempt_terminal', 'pending_retry_attempt', 'pending_replay_attempt'))
union all
select 'L08', a.partition_key, a.execution_id,
       format('attempt %s started %s, ended %s', a.attempt_index, a.started_at, a.ended_at)
from ff.attempt a
where a.ended_at < a.started_at
   or a.ended_as not in (
     'ended_success', 'ended_failure', 'ended_cancelled', 'interrupted_reclaimed')

union all
select 'O01', e.partition_key, e.execution_id,
       format('%s, but its events of the end are %s', e.outcome, c.outcomes)
from ff.execution e
cross join lateral (
  select coalesce(array_agg(v.outcome order by v.version), '{}') as outcomes,
         bool_or(v.outcome is distinct from case v.kind when 'completed' then 'success'
                                                        else v.kind::text end::ff.outcome) as is_odd
  from ff.event v
  where v.partition_key = e.partition_key and v.execution_id = e.execution_id
    and v.kind in ('completed', 'failed', 'cancelled', 'expired', 'skipped')) c
where cardinality(c.outcomes) <> e.replay_count + (e.phase = 'terminal')::integer
   or (e.phase = 'terminal'
       and c.outcomes[cardinality(c.outcomes)] is distinct from e.outcome)
   or c.is_odd

union all
-- A lease begins, and ends once: with the epoch it began with, or one more if it was taken away.
-- The end of an execution whose lease had expired or was revoked names that lease again.
select 'O02', l.partition_key, l.execution_id,
       format('%s v%s, epoch %s, lease %s follows %s, epoch %s, lease %s', l.kind, l.version,
              l.epoch, l.lease_id, l.before_kind, l.before_epoch, l.before_lease_id)
from (
  select v.partition_key, v.execution_id, v.version, v.kind, v.epoch, v.lease_id,
         lag(v.kind) over w as before_kind, lag(v.epoch) over w as before_epoch,
         lag(v.lease_id) over w as before_lease_id
  from ff.event v
  where v.lease_id is not null or v.kind in (
    'claimed', 'resumed', 'reclaimed', 'released', 'lease_expired', 'lease_revoked')
  window w as (partition by v.partition_key, v.execution_id order by v.version)
) l
where case
    when l.lease_id is null or l.epoch is null then true
    when l.kind in ('claimed', 'resumed', 'reclaimed') then
      l.before_kind in ('claimed', 'resumed', 'reclaimed')
      or (l.kind = 'reclaimed')
         <> (l.before_kind is not null and l.before_kind in ('lease_expired', 'lease_revoked'))
      or l.epoch <= l.before_epoch or l.lease_id = l.before_lease_id
    when l.before_kind in ('claimed', 'resumed', 'reclaimed') then
      l.lease_id <> l.before_lease_id
      or l.epoch - l.before_epoch not between 0 and (l.kind in (
           'lease_revoked', 'cancelled', 'skipped', 'expired', 'retry_scheduled'))::integer
    else l.before_kind is null or l.before_kind not in ('lease_expired', 'lease_revoked')
      or l.kind not in ('failed', 'cancelled', 'skipped', 'expired', 'retry_scheduled')
  end
union all
select 'O02', e.partition_key, e.execution_id,
       format('%s with lease %s, epoch %s, but the last lease event is %s, lease %s, epoch %s',
              e.ownership, e.lease_id, e.epoch, l.kind, l.lease_id, l.epoch)
from ff.execution e
left join lateral (
  select v.kind, v.lease_id, v.epoch from ff.event v
  where v.partition_key = e.partition_key and v.execution_id = e.execution_id
    and v.lease_id is not null
  order by v.version desc limit 1) l on true
where (e.ownership = 'leased')
      <> (l.kind is not null and l.kind in ('claimed', 'resumed', 'reclaimed'))
   or (e.ownership = 'leased' and (e.lease_id, e.epoch) is distinct from (l.lease_id, l.epoch))

union all
select 'O04', e.partition_key, e.execution_id,
       format('version %s, but the events have %s', e.version, v.versions)
from ff.execution e
cross join lateral (
  select coalesce(array_agg(v.version order by v.version), '{}') as versions
  from ff.event v
  where v.partition_key = e.partition_key and v.execution_id = e.execution_id) v
where v.versions <> array(select g from generate_series(1, e.version) g)

union all
select 'D01', k.partition_key, k.execution_id,
       format('the key %s in %s names an execution that is missing or of another namespace',
              k.key, k.namespace)
from ff.idempotency_key k
where (k.scope = 'unfinished' or k.expires_at > ff.now())
  and not exists (
    select from ff.execution e
    where e.partition_key = k.partition_key and e.execution_id = k.execution_id
      and e.namespace = k.namespace)
  and not exists (
    select from ff_test.forgotten f
    where f.partition_key = k.partition_key and f.execution_id = k.execution_id)
$$;
