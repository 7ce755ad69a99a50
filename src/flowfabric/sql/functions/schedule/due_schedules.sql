-- List the due schedules of an app, earliest first, and the time until another schedule becomes
-- due.
--
-- If p_names is given, the call considers only these schedules. The last row has no name. Its
-- read_at is the time with which the schedules were compared. Its due_in is the time from read_at
-- until another schedule becomes due; null if no other schedule will become due.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.due_schedules;
create function ff.due_schedules(
  p_namespace text,
  p_app       text,
  p_names     text[] default null,
  p_limit     integer default 1000
)
returns table (
  name        text,
  schedule_id uuid,
  rule_no     integer,
  cron        text,
  every       interval,
  time_zone   text,
  anchor_at   timestamptz,
  misfire     text,
  next_at     timestamptz,
  read_at     timestamptz,
  due_in      interval
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_now timestamptz;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_limit(p_limit);
  if p_namespace is null or p_app is null then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', case when p_namespace is null then 'namespace' else 'app' end,
      'problem', 'must be given'));
  end if;
  v_now := ff.now();
  return query
  (select s.name, s.schedule_id, s.rule_no, s.cron, s.every, s.time_zone, s.anchor_at,
          s.misfire::text, s.next_at, v_now, null::interval
   from ff.schedule s
   where s.namespace = p_namespace and s.app = p_app and s.state = 'active' and s.next_at <= v_now
     and (p_names is null or s.name = any (p_names))
   order by s.next_at, s.name
   limit p_limit)
  union all
  select null, null, null, null, null, null, null, null, null, v_now, (
    select s.next_at - v_now
    from ff.schedule s
    where s.namespace = p_namespace and s.app = p_app and s.state = 'active' and s.next_at > v_now
      and (p_names is null or s.name = any (p_names))
    order by s.next_at
    limit 1);
end;
$$;
