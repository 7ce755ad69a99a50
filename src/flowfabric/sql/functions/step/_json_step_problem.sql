-- Check the types in a JSON step of ff.record_step_json. Return the first field with a wrong type
-- and the text of the problem, or null. ff.record_steps checks the values.
drop function if exists ff._json_step_problem;
create function ff._json_step_problem(p_step jsonb)
returns text[]
language plpgsql
stable
as $$
declare
  v_field text;
begin
  foreach v_field in array array['execution_id', 'lease_id', 'attempt_id'] loop
    perform (p_step ->> v_field)::uuid;
  end loop;
  v_field := 'epoch';
  perform (p_step ->> v_field)::bigint;
  foreach v_field in array array['occurrence', 'position', 'follows'] loop
    perform (p_step ->> v_field)::integer;
  end loop;
  v_field := 'is_sequential';
  perform (p_step ->> v_field)::boolean;
  v_field := 'value_base64';
  perform decode(p_step ->> v_field, 'base64');
  return null;
exception when data_exception then
  return array[v_field, 'has a value of the wrong type'];
end;
$$;
