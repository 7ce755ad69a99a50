-- Check the fields and types of an item of ff.submit_json or a node of ff.submit_flow. Return the
-- field and the text of the first problem, or null. The submit itself checks the options and the
-- remaining ranges of values.
drop function if exists ff._item_problem;
create function ff._item_problem(p_item jsonb)
returns text[]
language plpgsql
stable
as $$
declare
  v_field   text;
  v_problem text;
begin
  if jsonb_typeof(p_item) <> 'object' then
    return array['items', 'must hold objects'];
  end if;
  if p_item ->> 'payload' is not null and p_item ->> 'payload_base64' is not null then
    return array['payload', 'must not be given together with payload_base64'];
  end if;
  if jsonb_typeof(p_item -> 'payload_encoding') not in ('string', 'null') then
    return array['payload_encoding', 'must be text'];
  end if;
  if jsonb_typeof(p_item -> 'delay_ms') not in ('number', 'null')
     or abs((p_item ->> 'delay_ms')::numeric) > 3155760000000 then
    return array['delay_ms', 'must be a number of milliseconds, at most a hundred years'];
  end if;
  if abs(nullif((p_item ->> 'delay_ms')::numeric, 0)) < 0.001 then
    return array['delay_ms', 'must be 0 or at least a microsecond'];
  end if;
  begin
    v_field := 'execution_id';
    v_problem := 'must be a uuid other than the nil uuid';
    if ff._is_nil_id((p_item ->> v_field)::uuid) then
      return array[v_field, v_problem];
    end if;
    v_field := 'route_id';
    v_problem := 'must be an id that register_routes returned';
    if (p_item ->> v_field)::bigint is null then
      return array[v_field, v_problem];
    end if;
    v_field := 'priority';
    v_problem := 'must be a whole number of 32 bits';
    perform (p_item ->> v_field)::integer;
    v_field := 'payload_base64';
    v_problem := 'must be bytes in base64';
    perform decode(p_item ->> v_field, 'base64');
  exception when data_exception then
    return array[v_field, v_problem];
  end;
  return null;
end;
$$;
