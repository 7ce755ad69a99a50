-- Find the newest executions that match a filter, reading a bounded number of rows. Refuse the call
-- if the states, the tags or the cursor are not valid.
--
-- The filter decides which index is used. A key and a parent have indexes of their own. States that
-- need attention (delayed, failed, cancelled …) share one index, which is read for one state after
-- the other. Active executions are found through their timers, unless too many executions have a
-- timer. For every other filter the primary key is read, from the highest id down.
--
-- The next call starts below next_id. If nothing is left, next_id is null. As far as possible,
-- next_id does not reveal the id of an execution of another namespace.
drop function if exists ff._scan_executions;
create function ff._scan_executions(
  p_partition_key      smallint,
  p_namespace          text,
  p_states             text[],
  p_lanes              text[],
  p_tasks              text[],
  p_tags               text,
  p_created_after      timestamptz,
  p_created_before     timestamptz,
  p_ended_after        timestamptz,
  p_ended_before       timestamptz,
  p_worker_instance_id text,
  p_key                text,
  p_parent_id          uuid,
  p_error              text,
  p_is_held            boolean,
  p_is_crash_loop      boolean,
  p_cursor             text,
  p_take               integer,
  p_look_at            integer
)
returns table (execution_ids uuid[], next_id uuid)
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_known     constant text[] := enum_range(null::ff.public_state)::text[];
  v_indexed   constant text[] := array[
    'delayed', 'rate_limited', 'waiting_children', 'suspended', 'resumable', 'failed', 'cancelled',
    'expired', 'skipped'];
  v_problem   text := ff._tags_problem(p_tags);
  v_tags      jsonb;
  v_states    ff.public_state[];
  v_attention ff.public_state[] := '{}';
  v_active    uuid[] := '{}';
  v_keyed     uuid[] := '{}';
  v_children  integer := 0;
  -- These filters are applied last, to the rows that match all other filters.
  v_is_picky  constant boolean := num_nonnulls(p_error, p_is_held, p_is_crash_loop) > 0;
  v_patterns  text[];
  v_routes    bigint[];
  v_before    uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  v_look_at   integer := p_look_at;
  -- Rows found through an index other than the primary key are scattered over the table and cost
  -- twice as much.
  v_scattered constant integer := greatest(p_look_at / 2, 100);
  v_quota     integer := 0;
  v_ids       uuid[];
  v_cut       uuid;
begin
  if not p_states <@ v_known or array_ndims(p_states) > 1
     or array_position(p_states, null) is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'states', 'problem', 'must be some of ' || array_to_string(v_known, ', ')));
  end if;
  if v_problem is not null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'tags', 'problem', v_problem));
  end if;
  if p_cursor !~ '^[0-9a-f]{32}$' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'cursor', 'problem', 'is not a cursor that a list returned'));
  end if;
  v_tags := nullif(p_tags::jsonb, '{}');
  v_before := coalesce(p_cursor::uuid, v_before);
  if p_worker_instance_id is not null then
    p_states := array(select s from unnest(coalesce(p_states, v_known)) s where s = 'active');
  end if;
  if p_is_held then
    p_states := array(select s from unnest(coalesce(p_states, v_known)) s where s = 'waiting');
  end if;
  v_states := p_states::ff.public_state[];

  if p_lanes is not null or p_tasks is not null then
    -- In a pattern * stands for any text and ? for any character.
    v_patterns := array(
      select translate(regexp_replace(t, E'([\\\\%_])', E'\\\\\\1', 'g'), '*?', '%_')
      from unnest(p_tasks) t);
    v_routes := array(
      select r.route_id from ff.route r
      where (p_lanes is null or r.lane = any (p_lanes))
        and (p_tasks is null or r.task like any (v_patterns))
        and (p_namespace is null or r.namespace = p_namespace));
  end if;
  if v_states = '{}' or v_routes = '{}' then
    return query select '{}'::uuid[], null::uuid;
    return;
  end if;

  if p_key is not null then
    v_keyed := array(
      select k.execution_id
      from (select p_namespace as name where p_namespace is not null
            union
            select r.namespace from ff.route r where p_namespace is null) n
      cross join lateral (
        select x.execution_id from ff.idempotency_key x
        where x.partition_key = p_partition_key and x.namespace = n.name and x.key = p_key
        offset 0) k);
    v_look_at := 0;
  elsif p_parent_id is not null then
    v_children := v_scattered;
    v_look_at := 0;
  elsif p_states <@ (v_indexed || 'active'::text) then
    v_attention := array_remove(v_states, 'active');
    v_look_at := 0;
    if 'active' = any (p_states) then
      -- Every active execution has a timer or waits to be reclaimed. If the limit is reached,
      -- there are too many to sort: then scan by the primary key.
      v_active := array(
        select d.execution_id from (
          select e.execution_id from ff.execution e
          where e.partition_key = p_partition_key and e.due_at is not null
          order by e.due_at
          limit v_scattered) d);
      v_active := v_active || array(
        select e.execution_id from ff.execution e
        where e.partition_key = p_partition_key
          and e.ownership in ('lease_expired_reclaimable', 'lease_revoked')
          and e.reclaim_at is null and e.line_id is null
        limit v_scattered);
      if cardinality(v_active) >= v_scattered then
        v_active := '{}';
        v_attention := '{}';
        v_look_at := v_scattered;
      end if;
    end if;
    if cardinality(v_attention) > 0 then
      v_quota := greatest((v_scattered - cardinality(v_active)) / cardinality(v_attention), 100);
    end if;
  end if;

  with seen as materialized (
    select k.execution_id, k.route_id, k.namespace, k.public_state, k.created_at, k.terminal_at,
           k.worker_instance_id, 'all' as part
    from (
      select e.execution_id, e.route_id, e.namespace, e.public_state, e.created_at, e.terminal_at,
             e.worker_instance_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id < v_before
      order by e.execution_id desc
      limit v_look_at) k
    union all
    select k.execution_id, k.route_id, k.namespace, k.public_state, k.created_at, k.terminal_at,
           k.worker_instance_id, s.state::text
    from unnest(v_attention) s(state)
    cross join lateral (
      select e.execution_id, e.route_id, e.namespace, e.public_state, e.created_at, e.terminal_at,
             e.worker_instance_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.public_state = s.state
        and e.public_state in (
          'delayed', 'rate_limited', 'waiting_children', 'suspended', 'resumable', 'failed',
          'cancelled', 'expired', 'skipped')
        and e.execution_id < v_before
      order by e.execution_id desc
      limit v_quota) k
    union all
    select k.execution_id, k.route_id, k.namespace, k.public_state, k.created_at, k.terminal_at,
           k.worker_instance_id, null
    from (select distinct x.id from unnest(v_active || v_keyed) x(id)) u
    cross join lateral (
      select e.execution_id, e.route_id, e.namespace, e.public_state, e.created_at, e.terminal_at,
             e.worker_instance_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = u.id
        and case when (p_key is not null or e.phase = 'active') and e.execution_id < v_before
              then p_parent_id is null or coalesce(e.parent_id = p_parent_id, false)
              else false end
      offset 0) k
    union all
    select k.execution_id, k.route_id, k.namespace, k.public_state, k.created_at, k.terminal_at,
           k.worker_instance_id, 'children'
    from (
      select e.execution_id, e.route_id, e.namespace, e.public_state, e.created_at, e.terminal_at,
             e.worker_instance_id
      from ff.execution e
      where e.partition_key = p_partition_key and e.parent_id = p_parent_id
        and e.execution_id < v_before
      order by e.execution_id desc
      limit v_children) k
  ),
  -- The scan may have missed rows below this id.
  lowest as materialized (
    select c.execution_id
    from (
      select (array_agg(s.execution_id order by s.execution_id))[1] as execution_id
      from seen s
      where s.part is not null
      group by s.part
      having count(*) >= case s.part when 'all' then v_look_at when 'children' then v_children
                                     else v_quota end) c
    order by c.execution_id desc
    limit 1
  ),
  -- The lowest id may belong to another namespace. So the next call starts slightly above it. If
  -- that would make no progress, it starts at the lowest id of this namespace.
  cut as materialized (
    select case
        when p_namespace is null then l.execution_id
        when ff._blur(l.execution_id, true) < v_before then ff._blur(l.execution_id, true)
        else coalesce(
          (select s.execution_id from seen s
           where s.namespace = p_namespace and s.execution_id >= l.execution_id
           order by s.execution_id limit 1),
          l.execution_id) end as execution_id
    from lowest l
  ),
  matching as (
    select s.execution_id
    from seen s
    where (v_states is null or s.public_state = any (v_states))
      and (p_namespace is null or s.namespace = p_namespace)
      and (v_routes is null or s.route_id in (select u.id from unnest(v_routes) u(id)))
      and (p_created_after is null or s.created_at >= p_created_after)
      and (p_created_before is null or s.created_at < p_created_before)
      and (p_ended_after is null or s.terminal_at >= p_ended_after)
      and (p_ended_before is null or s.terminal_at < p_ended_before)
      and (p_worker_instance_id is null or s.worker_instance_id = p_worker_instance_id)
      and s.execution_id >= coalesce((select c.execution_id from cut c),
                                     '00000000-0000-0000-0000-000000000000')
    order by s.execution_id desc
    offset 0
  ),
  picked as (
    select f.execution_id
    from matching f
    left join lateral (
      select (p_error is null
              or e.attempt_state <> 'pending_replay_attempt' and (
                e.failure_category = p_error
                or right(e.failure_category, length(p_error) + 1) = '.' || p_error
                or starts_with(e.failure_reason, p_error || ':')))
         and (p_is_held is null
              or p_is_held = (e.eligibility = 'blocked_by_operator'
                              and coalesce(e.attempt_pause_cause = 'held', false)))
         and (p_is_crash_loop is null
              or p_is_crash_loop = (e.crash_count >= 2 and e.phase <> 'terminal')) as is_picked
      from ff.execution e
      where e.partition_key = p_partition_key and e.execution_id = f.execution_id and v_is_picky
      offset 0) t on true
    where not v_is_picky or t.is_picked
    offset 0
  ),
  tagged as (
    select f.execution_id
    from picked f
    left join lateral (
      select b.tags @> v_tags as is_tagged
      from ff.execution_body b
      where b.partition_key = p_partition_key and b.execution_id = f.execution_id
        and v_tags is not null
      offset 0) t on true
    where v_tags is null or t.is_tagged
    limit p_take + 1
  )
  select array(select t.execution_id from tagged t), (select c.execution_id from cut c)
    into v_ids, v_cut;
  return query
  select v_ids[1 : p_take], case when cardinality(v_ids) > p_take then v_ids[p_take] else v_cut end;
end;
$$;
