-- Refuse to lease an execution whose lane is paused or disabled.
drop function if exists ff._check_lane_open;
create function ff._check_lane_open(p_route_id bigint, p_now timestamptz)
returns void
language plpgsql
stable
as $$
declare
  v_lane ff.lane;
begin
  select l.* into v_lane
  from ff.route r
  join ff.lane l on l.namespace = r.namespace and l.lane = r.lane
  where r.route_id = p_route_id
    and not (l.state in ('active', 'draining') or coalesce(l.resumes_at <= p_now, false));
  if found then
    perform ff._refuse('WF207', 'not_leaseable', jsonb_strip_nulls(jsonb_build_object(
      'lane', v_lane.lane, 'lane_state', v_lane.state, 'resumes_at', v_lane.resumes_at,
      'reason', v_lane.reason)));
  end if;
end;
$$;
