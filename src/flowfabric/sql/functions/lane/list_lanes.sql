-- List lanes in byte order of their names. A row has the state of the lane, how many executions
-- wait in it, how many wait in the lines of quotas and budgets, and the options in force. is_set
-- says whether an operator set the options.
--
-- The numbers are exact up to 10 000; 10 001 means more. If p_lane is given, only that lane is
-- listed.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF501 forbidden
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.list_lanes;
create function ff.list_lanes(
  p_namespace       text,
  p_lane            text default null,
  p_after           text default null,
  p_after_namespace text default null,
  p_limit           integer default null
)
returns table (
  namespace   text,
  lane        text,
  state       text,
  resumes_at  timestamptz,
  waiting     integer,
  retention   interval,
  reason      text,
  changed_by  text,
  changed_at  timestamptz,
  in_line     integer,
  concurrency integer,
  rate        integer,
  rate_window interval,
  fair_by     text,
  weights     jsonb,
  is_set      boolean
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform ff._check_namespace(p_namespace);
  if p_limit < 0 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'limit', 'problem', 'must be 0 or more'));
  end if;
  return query
  select v.namespace, v.lane, v.state, v.resumes_at, v.waiting, v.retention, v.reason, v.changed_by,
         v.changed_at, v.in_line, v.concurrency, v.rate, v.rate_window, v.fair_by, v.weights,
         v.is_set
  from ff.lane_depth v
  where (p_namespace is null or v.namespace = p_namespace)
    and (p_lane is null or v.lane = p_lane)
    and (p_after is null or v.lane collate "C" > p_after
         or (v.lane = p_after and v.namespace collate "C" > p_after_namespace))
  order by v.lane collate "C", v.namespace collate "C"
  limit p_limit;
end;
$$;
