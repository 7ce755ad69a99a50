-- Check an item of ff.register_gates. Return the field and the text of the first problem, or null.
drop function if exists ff._gate_problem;
create function ff._gate_problem(p_gate jsonb)
returns text[]
language plpgsql
stable
as $$
declare
  v_rest  jsonb;
  v_field text;
begin
  if jsonb_typeof(p_gate) is distinct from 'object' then
    return array['gates', 'must be objects'];
  end if;
  if p_gate ->> 'kind' is null or p_gate ->> 'kind' not in ('quota', 'budget') then
    return array['kind', 'must be quota or budget'];
  end if;
  v_rest := p_gate - array['kind', 'name', 'key'] - case p_gate ->> 'kind'
    when 'quota' then array['concurrency', 'rate', 'rate_window_ms', 'overflow', 'is_keyed']
    else array['limits', 'period', 'zone', 'period_ms', 'on_exceed'] end;
  if v_rest <> '{}' then
    return array[(select min(k.field) from jsonb_object_keys(v_rest) k(field)),
                 format('is not a field of a %s', p_gate ->> 'kind')];
  end if;
  v_field := (
    select min(f.field) from unnest(array['name', 'key', 'overflow', 'period', 'zone', 'on_exceed'])
      f(field)
    where jsonb_typeof(p_gate -> f.field) not in ('string', 'null'));
  if v_field is not null then
    return array[v_field, 'must be text'];
  end if;
  if jsonb_typeof(p_gate -> 'is_keyed') not in ('boolean', 'null') then
    return array['is_keyed', 'must be true or false'];
  end if;
  v_field := (
    select min(f.field) from unnest(array['concurrency', 'rate', 'rate_window_ms', 'period_ms'])
      f(field)
    where jsonb_typeof(p_gate -> f.field) not in ('number', 'null')
      or (p_gate ->> f.field ~ '^-?[0-9]+$') is false
      or (p_gate ->> f.field)::numeric not between 1 and
         case when f.field in ('concurrency', 'rate') then 2000000000 else 3155760000000 end);
  if v_field is not null then
    return array[v_field, 'must be a whole number, 1 or more'];
  end if;
  if p_gate ->> 'kind' = 'quota' then
    return ff._quota_problem(
      (p_gate ->> 'concurrency')::integer, (p_gate ->> 'rate')::integer,
      interval '1 millisecond' * (p_gate ->> 'rate_window_ms')::double precision,
      coalesce(p_gate ->> 'overflow', 'queue'));
  end if;
  if p_gate -> 'limits' is null then
    return case when p_gate ?| array['period', 'zone', 'period_ms', 'on_exceed']
             then array['limits', 'must be given with a period, a zone or on_exceed'] end;
  end if;
  if jsonb_typeof(p_gate -> 'limits') <> 'object' or p_gate -> 'limits' = '{}' then
    return array['limits', 'must be an object of dimension: {"hard": amount, "soft": amount}'];
  end if;
  if exists (
      select from jsonb_each(p_gate -> 'limits') l(dimension, amounts)
      where jsonb_typeof(l.amounts) <> 'object' or l.amounts - array['hard', 'soft'] <> '{}') then
    return array['limits', 'must each be {"hard": amount, "soft": amount}'];
  end if;
  if exists (
      select from jsonb_each(p_gate -> 'limits') l(dimension, amounts),
                  jsonb_each(l.amounts) a(word, amount)
      where jsonb_typeof(a.amount) not in ('number', 'null')
        or (a.amount::text ~ '^[0-9]+$|^null$') is false
        or (a.amount #>> '{}')::numeric not between 1 and 9223372036854775807) then
    return array['limits', 'must be whole numbers from 1 to 9223372036854775807'];
  end if;
  return ff._budget_problem(
    array(select l.dimension from jsonb_each(p_gate -> 'limits') l(dimension, amounts)
          order by l.dimension),
    array(select (l.amounts ->> 'hard')::bigint
          from jsonb_each(p_gate -> 'limits') l(dimension, amounts) order by l.dimension),
    array(select (l.amounts ->> 'soft')::bigint
          from jsonb_each(p_gate -> 'limits') l(dimension, amounts) order by l.dimension),
    case when p_gate ->> 'period_ms' is not null then coalesce(p_gate ->> 'period', 'interval')
         else p_gate ->> 'period' end,
    p_gate ->> 'zone',
    interval '1 millisecond' * (p_gate ->> 'period_ms')::double precision,
    coalesce(p_gate ->> 'on_exceed', 'fail'));
end;
$$;
