-- Return the names of the signals that a waitpoint takes, in the order in which p_conditions name
-- them. An empty list means every name. The list is empty if one of the conditions for the
-- waitpoint names no signal, or if none of p_conditions is for the waitpoint.
drop function if exists ff._required_names;
create function ff._required_names(p_conditions jsonb, p_waitpoint_id uuid)
returns text[]
language plpgsql
immutable
as $$
declare
  v_names text[] := '{}';
  v_leaf  jsonb;
begin
  for v_leaf in
    select l from jsonb_path_query(
      p_conditions, 'strict $.** ? (@.waitpoint == $id)',
      jsonb_build_object('id', p_waitpoint_id), silent => true) l
  loop
    if not v_leaf ? 'name' then
      return '{}';
    elsif v_leaf ->> 'name' <> all (v_names) then
      v_names := v_names || (v_leaf ->> 'name');
    end if;
  end loop;
  return v_names;
end;
$$;
