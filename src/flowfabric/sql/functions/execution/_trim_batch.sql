-- Delete a batch of executions whose retention is over, with all their rows. An index finds
-- executions whose policy sets a retention. A scan over the ids finds the others.
--
-- p_namespace, p_lane and p_tags are a filter. If all three are null, the scan continues where the
-- scan of the last call stopped, and only one caller scans at a time. If there is a filter, the
-- scan starts after the id p_after, and next_after says where the scan stopped. A null next_after
-- means that the scan reached the end.
drop function if exists ff._trim_batch;
create function ff._trim_batch(
  p_partition_key smallint,
  p_limit         integer,
  p_retention     interval,
  p_event_floor   interval,
  p_namespace     text default null,
  p_lane          text default null,
  p_tags          jsonb default null,
  p_after         uuid default null,
  out handled     integer,
  out due_in      interval,
  out next_after  uuid
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
#variable_conflict use_column
declare
  v_is_filtered constant boolean := num_nonnulls(p_namespace, p_lane, p_tags) > 0;
  v_now         timestamptz := ff.now();
  v_locked      uuid[];
  v_position    uuid;
  v_scan        record;
begin
  v_locked := array(
    select e.execution_id
    from ff.execution e
    where e.partition_key = p_partition_key and e.trim_at <= v_now and e.phase = 'terminal'
      and case
            when e.wakes_pending then false
            when e.parent_id is not null and exists (
              select from ff.execution p
              where p.partition_key = p_partition_key and p.execution_id = e.parent_id
                and p.phase <> 'terminal'
              offset 0) then false
            when e.flow_id is null then true
            else not exists (
              select from ff.execution m
              where m.partition_key = p_partition_key and m.flow_id = e.flow_id
                and m.phase <> 'terminal'
              offset 0) end
      and case
            when not v_is_filtered then true
            when e.namespace <> p_namespace then false
            when p_lane is not null and not exists (
              select from ff.route r where r.route_id = e.route_id and r.lane = p_lane
              offset 0) then false
            when p_tags is null then true
            else exists (
              select from ff.execution_body b
              where b.partition_key = p_partition_key and b.execution_id = e.execution_id
                and case when b.tags @> p_tags then true else false end
              offset 0) end
    order by e.trim_at
    limit p_limit
    for update skip locked);

  if cardinality(v_locked) < p_limit then
    if v_is_filtered then
      v_scan := ff._lock_executions_to_trim(
        p_partition_key, p_after, p_limit - cardinality(v_locked), p_retention, v_now, p_namespace,
        p_lane, p_tags);
      v_locked := v_locked || v_scan.locked_ids;
      next_after := v_scan.next_id;
    else
      insert into ff.trim_position (partition_key)
      select p_partition_key
      where not exists (
        select from ff.trim_position t where t.partition_key = p_partition_key)
      on conflict do nothing;
      select t.execution_id into v_position
      from ff.trim_position t where t.partition_key = p_partition_key
      for update skip locked;
      if found then
        v_scan := ff._lock_executions_to_trim(
          p_partition_key, v_position, p_limit - cardinality(v_locked),
          p_retention, v_now);
        v_locked := v_locked || v_scan.locked_ids;
        due_in := case when v_scan.next_id is not null then interval '2 seconds' end;
        update ff.trim_position t set execution_id = v_scan.next_id
        where t.partition_key = p_partition_key
          and t.execution_id is distinct from v_scan.next_id;
      end if;
    end if;
  elsif v_is_filtered then
    next_after := coalesce(p_after, '00000000-0000-0000-0000-000000000000');
  end if;

  v_locked := ff._mark_trimmed_flows(p_partition_key, v_locked, v_now);
  if cardinality(v_locked) > 0 then
    perform ff._delete_executions(p_partition_key, v_locked, p_event_floor, v_now);
  end if;
  handled := cardinality(v_locked);
end;
$$;
