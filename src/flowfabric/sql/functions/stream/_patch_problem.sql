-- Return what is wrong with the payload of a summary frame; null if nothing is. It must be a JSON
-- object, nested at most 16 deep.
drop function if exists ff._patch_problem;
create function ff._patch_problem(p_payload bytea)
returns text
language plpgsql
immutable
as $$
declare
  v_patch jsonb;
begin
  begin
    v_patch := convert_from(p_payload, 'UTF8')::jsonb;
  exception when data_exception or program_limit_exceeded then
    return 'a summary patch must be JSON';
  end;
  if jsonb_typeof(v_patch) is distinct from 'object' then
    return 'a summary patch must be a JSON object';
  end if;
  if ff._json_depth(v_patch) > 16 then
    return 'patch_depth_exceeded: a summary patch must be nested at most 16 deep';
  end if;
  return null;
end;
$$;
