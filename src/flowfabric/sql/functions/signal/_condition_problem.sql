-- Check the condition of a wait. Return the text of the first problem, or null. p_depth says how
-- deep the condition is nested in other conditions.
drop function if exists ff._condition_problem;
create function ff._condition_problem(p_condition jsonb, p_depth integer default 0)
returns text
language plpgsql
immutable
as $$
declare
  v_member  jsonb;
  v_problem text;
begin
  if p_condition is null or jsonb_typeof(p_condition) <> 'object' then
    return 'must be an object, such as {"signal": "approve"}';
  end if;
  if octet_length(p_condition::text) > 65536 then
    return 'must be at most 64 KiB';
  end if;
  if p_depth = 0 and p_condition ? 'default' then
    return case
      when jsonb_typeof(p_condition -> 'default') <> 'boolean'
        then 'default must say whether the wait has a default: true or false'
      else ff._condition_problem(p_condition - 'default') end;
  end if;
  if p_condition ? 'schema' and (jsonb_typeof(p_condition -> 'schema') <> 'number'
                                 or (p_condition ->> 'schema') !~ '^[0-9]{1,18}$'
                                    and (p_condition ->> 'schema') !~ '^[1-9][0-9]{18}$') then
    return 'schema must be an id of ff.register_signal_schemas';
  end if;
  if p_condition ? 'operator' then
    return case
      when p_condition <> '{"operator": true}' then 'must be {"operator": true}'
      when p_depth > 0 then 'an operator''s condition cannot be part of another condition' end;
  elsif p_condition ? 'waitpoint' then
    return case
      when p_condition - 'waitpoint' - 'name' - 'schema' <> '{}'
        or coalesce(p_condition ->> 'waitpoint', '')
           !~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
        then 'must be an object with the id of a waitpoint, and at most a name'
      when p_condition ? 'name' and ff._signal_name_problem(p_condition ->> 'name') is not null
        then 'name ' || ff._signal_name_problem(p_condition ->> 'name') end;
  elsif p_condition ? 'signal' then
    return case
      when jsonb_typeof(p_condition -> 'signal') <> 'string'
        or p_condition - 'signal' - 'schema' <> '{}'
        then 'must be an object with the name of a signal: {"signal": "approve"}'
      when ff._signal_name_problem(p_condition ->> 'signal') is not null
        then 'signal ' || ff._signal_name_problem(p_condition ->> 'signal') end;
  elsif p_condition ? 'approve' then
    return case
      when p_depth >= 4 then 'must not be nested deeper than 4'
      when p_condition - 'approve' - 'deny' - 'of' <> '{}'
        or jsonb_typeof(p_condition -> 'of') is distinct from 'array'
        or jsonb_array_length(p_condition -> 'of') not between 1 and 64
        or exists (select from jsonb_array_elements(p_condition -> 'of') m
                   where not m ? 'waitpoint' or m ? 'name'
                     or ff._condition_problem(m, p_depth) is not null)
        then 'approve needs the fields deny and of, with 1 to 64 waitpoints in of'
      when coalesce(p_condition ->> 'approve', '') !~ '^[1-9][0-9]?$'
        or coalesce(p_condition ->> 'deny', '') !~ '^[1-9][0-9]?$'
        or greatest((p_condition ->> 'approve')::integer, (p_condition ->> 'deny')::integer)
           > jsonb_array_length(p_condition -> 'of')
        then 'approve and deny must be whole numbers from 1 to the number of waitpoints'
      when (p_condition ->> 'approve')::integer + (p_condition ->> 'deny')::integer
           > jsonb_array_length(p_condition -> 'of') + 1
        then 'approve and deny together must be at most one more than the number of waitpoints: '
             'otherwise all could answer without a decision' end;
  elsif p_condition ? 'every' or p_condition ? 'at_least' then
    if p_depth >= 4 then
      return 'must not be nested deeper than 4';
    end if;
    v_member := coalesce(p_condition -> 'every', p_condition -> 'of');
    if v_member is null or jsonb_typeof(v_member) <> 'array'
       or jsonb_array_length(v_member) not between 1 and 64 then
      return 'must have 1 to 64 members';
    end if;
    if p_condition ? 'at_least' then
      if p_condition - 'at_least' - 'of' - 'distinct' <> '{}'
         or jsonb_typeof(p_condition -> 'at_least') <> 'number'
         or (p_condition ->> 'at_least') !~ '^[1-9][0-9]{0,4}$' then
        return 'at_least must be a whole number, 1 or more';
      end if;
      if coalesce(p_condition ->> 'distinct', 'signals') not in (
           'signals', 'waitpoints', 'sources') then
        return 'distinct must be signals, waitpoints or sources';
      end if;
      if p_condition ->> 'distinct' = 'waitpoints'
         and (p_condition ->> 'at_least')::integer > (
           select count(distinct coalesce(m -> 'signal', '[]' || (m -> 'waitpoint')))
           from jsonb_array_elements(v_member) m) then
        return 'at_least must not be more than the number of different members';
      end if;
    elsif p_condition - 'every' <> '{}' then
      return 'every must be the only field';
    end if;
    for v_member in select m from jsonb_array_elements(v_member) m loop
      v_problem := case
        when p_condition ? 'at_least' and not (v_member ? 'signal' or v_member ? 'waitpoint')
          then 'the members of at_least must be signals or waitpoints'
        else ff._condition_problem(v_member, p_depth + 1) end;
      if v_problem is not null then
        return v_problem;
      end if;
    end loop;
    return null;
  end if;
  return 'must be an object with signal, waitpoint, every, at_least, approve or operator';
end;
$$;
