-- What is wrong with the form of an item of submit_json: its field and the problem, or null. Whether
-- the values make sense is judged by the submit itself.
drop function if exists ff._item_problem;
create function ff._item_problem(p_item jsonb)
returns text[]
language plpgsql
stable
as $$
declare
  v_field   text;
  v_problem text;
  v_value   jsonb;
begin
  if jsonb_typeof(p_item) <> 'object' then
    return array['items', 'must hold objects'];
  end if;
  begin
    for v_field, v_value in select e.key, e.value from jsonb_each(p_item) e order by e.key loop
      continue when jsonb_typeof(v_value) = 'null';
      case
        when v_field = 'payload' then
          if p_item ->> 'payload_base64' is not null then
            return array[v_field, 'must not be given together with payload_base64'];
          end if;
        when v_field in ('payload_encoding', 'creator', 'key', 'key_scope', 'trace_context',
                         'task_version') then
          v_problem := 'must be text';
          if jsonb_typeof(v_value) <> 'string' then
            return array[v_field, v_problem];
          end if;
        when v_field in ('execution_id', 'parent_id') then
          v_problem := 'must be a uuid other than the nil uuid';
          if ff._is_nil_id((p_item ->> v_field)::uuid) then
            return array[v_field, v_problem];
          end if;
        when v_field in ('priority', 'max_reclaims') then
          v_problem := 'must be a whole number of 32 bits';
          perform (p_item ->> v_field)::integer;
        when v_field = 'route_id' then
          v_problem := 'must be an id that register_routes gave';
          perform (p_item ->> v_field)::bigint;
        when v_field in ('delay_ms', 'deadline_ms', 'key_window_ms') then
          v_problem := 'must be a number of milliseconds, at most a hundred years';
          if jsonb_typeof(v_value) <> 'number'
             or abs((p_item ->> v_field)::numeric) > 3155760000000 then
            return array[v_field, v_problem];
          end if;
        when v_field in ('delayed_until', 'deadline_at') then
          v_problem := 'must be a time with its zone, as in 2026-03-01T09:00:00Z';
          if p_item ->> v_field !~* ('^[0-9]{4}(-[0-9]{2}){2}[t ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?'
                                     '(z|[+-][0-9]{2}(:?[0-9]{2})?)$') then
            return array[v_field, v_problem];
          end if;
          perform (p_item ->> v_field)::timestamptz;
        when v_field = 'with_parent' then
          if jsonb_typeof(v_value) <> 'boolean' then
            return array[v_field, 'must be true or false'];
          end if;
        when v_field = 'payload_base64' then
          v_problem := 'must be bytes in base64';
          perform decode(p_item ->> v_field, 'base64');
        when v_field = 'key_fingerprint' then
          v_problem := 'must be bytes in hexadecimal';
          perform decode(p_item ->> v_field, 'hex');
        when v_field in ('policy', 'tags') then
          null;
        else
          return array[v_field, 'is not a field of an item'];
      end case;
    end loop;
  exception when data_exception then
    return array[v_field, v_problem];
  end;
  if p_item ->> 'execution_id' is null then
    return array['execution_id', 'must be a uuid other than the nil uuid'];
  end if;
  if p_item ->> 'route_id' is null then
    return array['route_id', 'must be an id that register_routes gave'];
  end if;
  return null;
end;
$$;
