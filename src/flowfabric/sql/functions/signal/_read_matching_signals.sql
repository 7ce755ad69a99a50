-- Return the signals that a wait would take now, the time at which the last of these signals was
-- noticed, and the waitpoint that each of them answers. signal_ids is null if the condition of the
-- wait is not satisfied. Changes nothing.
--
-- A waitpoint takes the signals that were sent with its token. If there are none and the waitpoint
-- is open, it takes one signal by name: a signal whose name equals the key of the waitpoint. A
-- waitpoint of an approval takes no signal by name. If several waitpoints of the condition have
-- the same key, a signal by name answers the oldest of them that has no answer yet.
drop function if exists ff._read_matching_signals;
create function ff._read_matching_signals(
  p_partition_key  smallint,
  p_execution_id   uuid,
  p_condition      jsonb,
  out ready_at     timestamptz,
  out signal_ids   uuid[],
  out answered_ids uuid[]
)
returns record
language plpgsql
stable
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_points    uuid[];
  v_addresses uuid[];
  v_keys      text[];
  v_names     text[];
  v_ids       uuid[];
  v_sources   text[];
  v_key       text;
begin
  if p_condition ?| array['every', 'at_least', 'approve'] then
    v_points := ff._waitpoints_in(p_condition);
    select array_agg(coalesce(g.waitpoint_id, w.waitpoint_id) order by g.noticed_at, g.signal_id),
           array_agg(g.name order by g.noticed_at, g.signal_id),
           array_agg(g.signal_id order by g.noticed_at, g.signal_id),
           array_agg(concat_ws(' ', g.source_type, g.source_identity)
                     order by g.noticed_at, g.signal_id)
      into v_addresses, v_names, v_ids, v_sources
    from (
      select x.signal_id, x.name, x.waitpoint_id, x.noticed_at, x.source_type, x.source_identity,
             row_number() over (partition by x.name, x.waitpoint_id
                                order by x.noticed_at, x.signal_id) as turn
      from ff.signal x
      where x.partition_key = p_partition_key and x.execution_id = p_execution_id
        and x.taken_at is null and x.noticed_at is not null) g
    left join (
      select x.waitpoint_id, x.key,
             row_number() over (partition by x.key order by x.created_at, x.waitpoint_id) as turn
      from ff.waitpoint x
      where x.partition_key = p_partition_key and x.execution_id = p_execution_id
        and x.waitpoint_id = any (v_points) and x.closed_at is null and x.approval_id is null
        and not exists (
          select from ff.signal y
          where y.partition_key = p_partition_key and y.execution_id = p_execution_id
            and y.waitpoint_id = x.waitpoint_id and y.taken_at is null
            and y.noticed_at is not null
          offset 0)) w
      on g.waitpoint_id is null and w.key = g.name and w.turn = g.turn;
    v_keys := array(
      select case when u.address is null then 's ' || u.name else 'w ' || u.address end
      from unnest(v_addresses, v_names) with ordinality u(address, name, n)
      order by u.n);
    signal_ids := ff._choose_signals(p_condition, v_keys, v_names, v_ids, v_sources);
    answered_ids := array(
      select v_addresses[array_position(v_ids, u.id)]
      from unnest(signal_ids) with ordinality u(id, n)
      order by u.n);
    select max(g.noticed_at) into ready_at from ff.signal g
    where g.partition_key = p_partition_key and g.execution_id = p_execution_id
      and g.signal_id = any (signal_ids);
    return;
  end if;
  if p_condition ? 'waitpoint' then
    select w.key into v_key from ff.waitpoint w
    where w.partition_key = p_partition_key and w.execution_id = p_execution_id
      and w.waitpoint_id = (p_condition ->> 'waitpoint')::uuid
      and w.closed_at is null and w.approval_id is null
      and case when p_condition ? 'name' then w.key = p_condition ->> 'name' else true end
      and not exists (
        select from ff.signal y
        where y.partition_key = p_partition_key and y.execution_id = p_execution_id
          and y.waitpoint_id = w.waitpoint_id and y.taken_at is null and y.noticed_at is not null
        offset 0);
    select o.noticed_at, array[o.signal_id], array[(p_condition ->> 'waitpoint')::uuid]
      into ready_at, signal_ids, answered_ids
    from (
      (select g.noticed_at, g.signal_id from ff.signal g
       where g.partition_key = p_partition_key and g.execution_id = p_execution_id
         and g.waitpoint_id = (p_condition ->> 'waitpoint')::uuid
         and g.taken_at is null and g.noticed_at is not null
         and case when p_condition ? 'name' then g.name = p_condition ->> 'name' else true end
       order by g.noticed_at, g.signal_id
       limit 1)
      union all
      (select g.noticed_at, g.signal_id from ff.signal g
       where g.partition_key = p_partition_key and g.execution_id = p_execution_id
         and g.name = v_key and g.taken_at is null and g.noticed_at is not null
         and g.waitpoint_id is null
       order by g.noticed_at, g.signal_id
       limit 1)) o
    limit 1;
    return;
  end if;
  select g.noticed_at, array[g.signal_id], array[null::uuid]
    into ready_at, signal_ids, answered_ids
  from ff.signal g
  where g.partition_key = p_partition_key and g.execution_id = p_execution_id
    and g.name = p_condition ->> 'signal' and g.taken_at is null and g.noticed_at is not null
    and g.waitpoint_id is null
  order by g.noticed_at, g.signal_id
  limit 1;
end;
$$;
