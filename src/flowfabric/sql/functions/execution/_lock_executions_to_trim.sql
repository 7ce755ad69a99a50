-- Lock executions whose retention is over, without waiting. The call scans at most 2 000 rows in id
-- order, and locks at most p_limit rows.
--
-- An execution is locked only if its parent and all members of its flow have ended, and its end is
-- fully propagated. Executions whose policy sets a retention are left out; ff._trim_batch finds
-- them by an index. If a namespace, a lane or tags are given, only executions that match all of
-- them are locked.
--
-- p_position is the id after which the scan starts; null starts at the first id. next_id is the
-- p_position of the next call; null means that the scan reached the end. The scan skips ids that
-- are too young for the shortest retention in force.
drop function if exists ff._lock_executions_to_trim;
create function ff._lock_executions_to_trim(
  p_partition_key smallint,
  p_position      uuid,
  p_limit         integer,
  p_retention     interval,
  p_now           timestamptz,
  p_namespace     text default null,
  p_lane          text default null,
  p_tags          jsonb default null,
  out locked_ids  uuid[],
  out next_id     uuid
)
returns record
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_last    constant uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  v_is_all  constant boolean := num_nonnulls(p_namespace, p_lane, p_tags) = 0;
  v_at      uuid := coalesce(p_position, '00000000-0000-0000-0000-000000000000');
  v_left    integer := 2000;
  v_young   uuid;
  v_foreign uuid;
  v_end     uuid;
  v_seen    uuid[];
  v_ended   uuid[];
  v_ends_at timestamptz[];
begin
  -- Ids carry milliseconds: include all ids of the last millisecond.
  v_young := ff._lowest_id_at(p_now + interval '2 milliseconds' - least(p_retention, (
    select min(l.retention) from ff.lane l)));
  v_foreign := ff._lowest_id_at(p_now + interval '1 day');
  locked_ids := '{}';
  loop
    if v_at < v_young then
      v_end := v_young;
    else
      v_at := greatest(v_at, v_foreign);
      v_end := v_last;
    end if;
    with seen as materialized (
      select e.execution_id, e.namespace, e.route_id, e.phase, e.terminal_at, e.retention,
             e.wakes_pending, e.parent_id, e.flow_id
      from ff.execution e
      where e.partition_key = p_partition_key
        and e.execution_id > v_at and e.execution_id <= v_end
      order by e.execution_id
      limit v_left
    ),
    ended as materialized (
      select s.execution_id, s.terminal_at
      from seen s
      left join lateral (
        select x.retention
        from ff.route r join ff.lane x on x.namespace = r.namespace and x.lane = r.lane
        where r.route_id = s.route_id
        offset 0
      ) l on true
      where s.phase = 'terminal' and s.retention is null and not s.wakes_pending
        and s.terminal_at + coalesce(l.retention, p_retention) <= p_now
        and case when s.parent_id is null then true else not exists (
              select from ff.execution p
              where p.partition_key = p_partition_key and p.execution_id = s.parent_id
                and p.phase <> 'terminal'
              offset 0) end
        and case when s.flow_id is null then true else not exists (
              select from ff.execution m
              where m.partition_key = p_partition_key and m.flow_id = s.flow_id
                and m.phase <> 'terminal'
              offset 0) end
        and case
              when v_is_all then true
              when s.namespace <> p_namespace then false
              when p_lane is not null and not exists (
                select from ff.route r where r.route_id = s.route_id and r.lane = p_lane
                offset 0) then false
              when p_tags is null then true
              else exists (
                select from ff.execution_body b
                where b.partition_key = p_partition_key and b.execution_id = s.execution_id
                  and case when b.tags @> p_tags then true else false end
                offset 0) end
      order by s.execution_id
      limit p_limit - cardinality(locked_ids)
    )
    select array(select s.execution_id from seen s order by s.execution_id),
           array(select d.execution_id from ended d order by d.execution_id),
           array(select d.terminal_at from ended d order by d.execution_id)
      into v_seen, v_ended, v_ends_at;

    next_id := case
      when cardinality(v_ended) = p_limit - cardinality(locked_ids)
        then v_ended[cardinality(v_ended)]
      when cardinality(v_seen) = v_left then v_seen[v_left] end;
    -- Compare the end again under the lock: the execution may have been replayed meanwhile.
    locked_ids := locked_ids || array(
      select w.execution_id
      from unnest(v_ended, v_ends_at) u(execution_id, terminal_at)
      cross join lateral (
        select e.execution_id
        from ff.execution e
        where e.partition_key = p_partition_key and e.execution_id = u.execution_id
          and e.phase = 'terminal' and e.retention is null and e.terminal_at = u.terminal_at
          and not e.wakes_pending
        for update skip locked
      ) w);
    exit when next_id is not null or v_end = v_last;
    v_left := v_left - cardinality(v_seen);
    v_at := v_young;
  end loop;
end;
$$;
