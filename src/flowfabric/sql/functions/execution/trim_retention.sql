-- Delete executions that ended long enough ago, and all they own.
--
-- How long is said by the execution's policy, else by its lane, else by p_retention. Those with a
-- say of their own are found by their time. The rest is found by a walk over all ids, 2 000 a call,
-- that goes on where the last one stopped; only one caller walks at a time. Ids begin with the time
-- they were made, so where they get too young to have ended long ago the walk jumps to the first
-- that is no time at all, and at the end it starts again. due_in is how soon another call is worth
-- it: null once the walk has been around. Events of an execution stay p_event_floor after its end. A
-- child stays while its parent goes on: a later run of that would submit it again. A member of a flow
-- stays until all of them have ended; its edges and groups go with it, and the flow with the last one.
--
-- Moves:    a terminal execution is gone
-- Refuses:  WF001 invalid_input
-- Locks:    executions and their flows, skipping those that are locked; the position of the walk, if
--           it is free
-- Replay:   nothing left to do the second time
drop function if exists ff.trim_retention;
create function ff.trim_retention(
  p_partition_key smallint,
  p_limit         integer default 500,
  p_retention     interval default '30 days',
  p_event_floor   interval default '24 hours'
)
returns table (handled integer, due_in interval)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now      timestamptz := ff.now();
  v_doomed   uuid[];
  v_position text;
  v_walk     record;
begin
  perform ff._check_limit(p_limit);
  if p_retention is null
     or p_retention not between interval '0' and interval '36525 days' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'retention', 'problem', 'must be between nothing and a hundred years'));
  end if;
  if p_event_floor is null
     or p_event_floor not between interval '0' and interval '36525 days' then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'event_floor', 'problem', 'must be between nothing and a hundred years'));
  end if;

  v_doomed := array(
    select e.execution_id
    from ff.execution e
    where e.partition_key = p_partition_key and e.trim_at <= v_now and e.phase = 'terminal'
      and case
            when e.wakes_pending then false
            when e.parent_id is not null and exists (
              select from ff.execution p
              where p.partition_key = p_partition_key and p.execution_id = e.parent_id
                and p.phase <> 'terminal') then false
            when e.flow_id is null then true
            else not exists (
              select from ff.execution m
              where m.partition_key = p_partition_key and m.flow_id = e.flow_id
                and m.phase <> 'terminal') end
    order by e.trim_at
    limit p_limit
    for update skip locked);

  if cardinality(v_doomed) < p_limit then
    insert into ff.meta (name, value)
    select 'trim_position:' || p_partition_key, ''
    where not exists (
      select from ff.meta m where m.name = 'trim_position:' || p_partition_key)
    on conflict do nothing;
    select m.value into v_position
    from ff.meta m where m.name = 'trim_position:' || p_partition_key
    for update skip locked;
    if found then
      v_walk := ff._walk_ended(p_partition_key, nullif(v_position, '')::uuid,
                               p_limit - cardinality(v_doomed), p_retention, v_now);
      v_doomed := v_doomed || v_walk.doomed;
      due_in := case when v_walk.next_id is not null then interval '2 seconds' end;
      update ff.meta m set value = coalesce(v_walk.next_id::text, '')
      where m.name = 'trim_position:' || p_partition_key
        and m.value is distinct from coalesce(v_walk.next_id::text, '');
    end if;
  end if;

  v_doomed := ff._free_to_trim(p_partition_key, v_doomed, v_now);
  if cardinality(v_doomed) > 0 then
    perform ff._trim_executions(p_partition_key, v_doomed, p_event_floor, v_now);
  end if;
  handled := cardinality(v_doomed);
  return next;
end;
$$;
