-- Delete executions whose retention is over, with all their rows. A filter limits the call to a
-- namespace, a lane or certain tags.
--
-- If the policy of an execution has a retention, that retention applies. Otherwise the retention of
-- its lane applies, or p_retention if the lane has none. Events stay for p_event_floor after the
-- end of their execution, and longer if a subscription needs them. A child stays while its parent
-- is unfinished. A member of a flow stays until all members have ended.
--
-- If there is a filter, a call scans at most 2 000 executions in id order, starting after the id
-- p_after. Pass next_after as p_after of the next call; null means that the scan has reached the
-- end.
--
-- If there is no filter, the call scans like ff.trim_executions, and due_in is the time after which
-- the next call is worthwhile.
--
-- Moves:    a terminal execution is deleted
-- Refuses:  WF001 invalid_input
-- Locks:    executions, the position of the scan (if there is no filter), and flows, skipping
--           locked ones; then the row of the partition in ff.trim_mark, waiting up to 2 s
-- Repeat:   a second call does what p_limit or a lock has left undone
-- Rights:   operator
drop function if exists ff.trim_retention;
create function ff.trim_retention(
  p_partition_key smallint,
  p_limit         integer default 500,
  p_retention     interval default '30 days',
  p_event_floor   interval default '24 hours',
  p_namespace     text default null,
  p_lane          text default null,
  p_tags          text default null,
  p_after         uuid default null
)
returns table (handled integer, due_in interval, next_after uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_field   text;
  v_problem text := ff._tags_problem(p_tags);
begin
  perform ff._check_operator('trim_retention');
  perform ff._check_partition(p_partition_key);
  perform ff._check_pass(p_limit);
  if ff._is_within(p_retention, interval '0', interval '36525 days') is not true then
    v_field := 'retention';
    v_problem := 'must be between 0 and a hundred years, in days or smaller units';
  elsif ff._is_within(p_event_floor, interval '0', interval '36525 days') is not true then
    v_field := 'event_floor';
    v_problem := 'must be between 0 and a hundred years, in days or smaller units';
  elsif p_namespace = '' then
    v_field := 'namespace'; v_problem := 'must not be empty; null means any';
  elsif p_lane = '' then
    v_field := 'lane'; v_problem := 'must not be empty; null means any';
  elsif v_problem is not null then
    v_field := 'tags';
  elsif p_after is not null
     and num_nonnulls(p_namespace, p_lane, nullif(p_tags, '{}')) = 0 then
    v_field := 'after'; v_problem := 'needs a filter: without one, the scan continues by itself';
  end if;
  if v_field is not null then
    perform ff._refuse('WF001', 'invalid_input',
                       jsonb_build_object('field', v_field, 'problem', v_problem));
  end if;
  return query
  select t.handled, t.due_in, t.next_after
  from ff._trim_batch(p_partition_key, p_limit, p_retention, p_event_floor, p_namespace, p_lane,
                      nullif(p_tags::jsonb, '{}'), p_after) t;
end;
$$;
