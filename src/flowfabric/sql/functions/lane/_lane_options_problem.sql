-- Check the options of a lane. Return the field and the text of the first problem, or null.
drop function if exists ff._lane_options_problem;
create function ff._lane_options_problem(p_options jsonb)
returns text[]
language plpgsql
immutable
as $$
declare
  v_field text;
begin
  if p_options is null then
    return null;
  end if;
  if jsonb_typeof(p_options) <> 'object' then
    return array['options', 'must be an object'];
  end if;
  v_field := (
    select min(k.field) from jsonb_object_keys(p_options) k(field)
    where k.field not in ('concurrency', 'rate', 'rate_window_ms', 'fair_by', 'weights'));
  if v_field is not null then
    return array[v_field, 'is not an option of a lane'];
  end if;
  v_field := (
    select min(f.field) from unnest(array['concurrency', 'rate', 'rate_window_ms']) f(field)
    where jsonb_typeof(p_options -> f.field) not in ('number', 'null')
      or (p_options ->> f.field ~ '^[0-9]{1,13}$') is false
      or (p_options ->> f.field)::numeric not between 1 and
         case when f.field = 'rate_window_ms' then 31622400000 else 2000000000 end);
  if v_field is not null then
    return array[v_field, case when v_field = 'rate_window_ms'
                            then 'must be from 1 to 31622400000 (366 days)'
                            else 'must be a whole number from 1 to 2000000000' end];
  end if;
  if p_options ->> 'fair_by' is not null and (
       jsonb_typeof(p_options -> 'fair_by') <> 'string' or p_options ->> 'fair_by' = ''
       or octet_length(p_options ->> 'fair_by') > 256
       or p_options ->> 'fair_by' ~ E'[\x01-\x20\x7f]') then
    return array['fair_by', 'must be the name of an argument'];
  end if;
  if p_options ->> 'weights' is null then
    return null;
  end if;
  if jsonb_typeof(p_options -> 'weights') <> 'object'
     or octet_length((p_options -> 'weights')::text) > 65536 then
    return array['weights', 'must be an object of key: turns, at most 64 KiB'];
  end if;
  if exists (
       select from jsonb_each(p_options -> 'weights') w(key, turns)
       where w.key = '' or octet_length(w.key) > 256 or jsonb_typeof(w.turns) <> 'number'
         or (w.turns::text ~ '^[0-9]{1,3}$') is not true
         or w.turns::text::numeric not between 1 and 100) then
    return array['weights', 'must have keys of 1 to 256 bytes and whole numbers from 1 to 100'];
  end if;
  return null;
end;
$$;
