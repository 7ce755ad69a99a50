-- Lock a lane and return it. Refuse the call if the lane does not exist.
drop function if exists ff._lock_lane;
create function ff._lock_lane(p_namespace text, p_lane text)
returns ff.lane
language plpgsql
as $$
declare
  v_lane ff.lane;
begin
  select l.* into v_lane from ff.lane l
  where l.namespace = p_namespace and l.lane = p_lane
  for no key update;
  if not found then
    perform ff._refuse('WF303', 'lane_not_found', jsonb_build_object('lane', p_lane));
  end if;
  return v_lane;
end;
$$;
