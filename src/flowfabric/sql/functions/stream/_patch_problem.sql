-- Check the payload of a summary frame. Return the text of the problem, or null. The payload must
-- be a JSON object, nested at most 16 deep.
drop function if exists ff._patch_problem;
create function ff._patch_problem(p_payload bytea)
returns text
language plpgsql
immutable
as $$
declare
  v_patch jsonb;
  v_depth integer;
begin
  begin
    v_patch := convert_from(p_payload, 'UTF8')::jsonb;
    v_depth := ff._json_depth(v_patch);
  exception when statement_too_complex then
    -- The value is nested so deep that no function can go through it.
    v_depth := 17;
  when data_exception or program_limit_exceeded then
    return 'a summary patch must be JSON';
  end;
  if v_depth > 16 then
    return 'patch_depth_exceeded: a summary patch must be nested at most 16 deep';
  end if;
  if jsonb_typeof(v_patch) is distinct from 'object' then
    return 'a summary patch must be a JSON object';
  end if;
  return null;
end;
$$;
