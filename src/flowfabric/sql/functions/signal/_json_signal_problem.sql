-- Check the types in a JSON signal of ff.deliver_signal_json. Return the first field with a wrong
-- type and the text of the problem, or null. ff.deliver_signals checks the values.
drop function if exists ff._json_signal_problem;
create function ff._json_signal_problem(p_signal jsonb)
returns text[]
language plpgsql
stable
as $$
declare
  v_field text;
begin
  foreach v_field in array array['execution_id', 'signal_id'] loop
    perform (p_signal ->> v_field)::uuid;
  end loop;
  v_field := 'schema_id';
  perform (p_signal ->> v_field)::bigint;
  v_field := 'payload_base64';
  perform decode(p_signal ->> v_field, 'base64');
  return null;
exception when data_exception then
  return array[v_field, 'has a value of the wrong type'];
end;
$$;
