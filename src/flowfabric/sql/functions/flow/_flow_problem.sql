-- Check the fields of a flow that is given as JSON, without its nodes and edges. Return the field
-- and the text of the first problem, or null.
drop function if exists ff._flow_problem;
create function ff._flow_problem(p_flow jsonb)
returns text[]
language plpgsql
immutable
as $$
declare
  v_field   text;
  v_problem text;
begin
  if jsonb_typeof(p_flow) is distinct from 'object' then
    return array['flow', 'must be an object'];
  end if;
  select f.key into v_field from jsonb_object_keys(p_flow) f(key)
  where f.key not in ('flow_id', 'flow_kind', 'tags', 'creator', 'parent_id', 'nodes', 'edges',
                      'groups')
  limit 1;
  if found then
    return array[v_field, 'is not a field of a flow'];
  end if;
  if p_flow ->> 'flow_id' is null
     or p_flow ->> 'flow_id' !~* '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$'
     or ff._is_nil_id((p_flow ->> 'flow_id')::uuid) then
    return array['flow_id', 'must be a uuid other than the nil uuid'];
  end if;
  if jsonb_typeof(p_flow -> 'flow_kind') is distinct from 'string'
     or octet_length(p_flow ->> 'flow_kind') not between 1 and 256 then
    return array['flow_kind', 'must be text of 1 to 256 bytes'];
  end if;
  -- Pass tags as JSON, not as text, so that a string that holds an object is refused.
  v_problem := ff._tags_problem(nullif(p_flow -> 'tags', 'null')::text);
  if v_problem is not null then
    return array['tags', v_problem];
  end if;
  if p_flow ->> 'creator' is not null and (jsonb_typeof(p_flow -> 'creator') <> 'string'
                                           or octet_length(p_flow ->> 'creator') > 256) then
    return array['creator', 'must be text of at most 256 bytes'];
  end if;
  if p_flow ->> 'parent_id' is not null
     and (p_flow ->> 'parent_id' !~* '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$'
          or ff._is_nil_id((p_flow ->> 'parent_id')::uuid)) then
    return array['parent_id', 'must be a uuid other than the nil uuid'];
  end if;
  if jsonb_typeof(p_flow -> 'nodes') is distinct from 'array'
     or jsonb_array_length(p_flow -> 'nodes') not between 1 and 10000 then
    return array['nodes', 'must be a list of 1 to 10000 objects'];
  end if;
  foreach v_field in array array['edges', 'groups'] loop
    if p_flow ->> v_field is not null and (jsonb_typeof(p_flow -> v_field) <> 'array'
                                           or jsonb_array_length(p_flow -> v_field) > 50000) then
      return array[v_field, 'must be a list of at most 50000 objects'];
    end if;
  end loop;
  return null;
end;
$$;
