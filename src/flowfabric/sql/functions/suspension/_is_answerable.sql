-- Tell whether a condition can still be satisfied. The call reads no table.
--
-- p_closed lists the closed waitpoints of the condition, which get no more signals. The other
-- arrays describe the signals that the waitpoints of the condition have received, in the order in
-- which waits take them.
--
-- A condition for a signal name, for an open waitpoint or for an operator can always be satisfied.
-- A waitpoint of an approval takes one answer, so it counts as closed once it is answered.
drop function if exists ff._is_answerable;
create function ff._is_answerable(
  p_condition jsonb,
  p_closed    uuid[],
  p_keys      text[],
  p_names     text[],
  p_ids       uuid[],
  p_sources   text[]
)
returns boolean
language plpgsql
immutable
as $$
declare
  v_member   jsonb;
  v_possible text[] := '{}';
  v_open     integer := 0;
  v_answers  integer;
  v_yes      integer;
begin
  if p_condition ? 'waitpoint' then
    return (p_condition ->> 'waitpoint')::uuid <> all (p_closed)
      or ff._choose_signals(p_condition, p_keys, p_names, p_ids, p_sources) is not null;
  elsif p_condition ? 'every' then
    for v_member in select m from jsonb_array_elements(p_condition -> 'every') m loop
      if not ff._is_answerable(v_member, p_closed, p_keys, p_names, p_ids, p_sources) then
        return false;
      end if;
    end loop;
  elsif p_condition ? 'at_least' then
    for v_member in select m from jsonb_array_elements(p_condition -> 'of') m loop
      if v_member ? 'signal' or (v_member ->> 'waitpoint')::uuid <> all (p_closed) then
        v_open := v_open + 1;
      elsif not ff._is_answerable(v_member, p_closed, p_keys, p_names, p_ids, p_sources) then
        continue;
      end if;
      v_possible := v_possible || coalesce('s ' || (v_member ->> 'signal'),
                                           'w ' || (v_member ->> 'waitpoint'));
    end loop;
    if p_condition ->> 'distinct' = 'waitpoints' then
      return (select count(distinct u.key) from unnest(v_possible) u(key))
        >= (p_condition ->> 'at_least')::integer;
    end if;
    -- One open address can get any number of signals.
    return v_open > 0
      or ff._choose_signals(p_condition, p_keys, p_names, p_ids, p_sources) is not null;
  elsif p_condition ? 'approve' then
    select count(*) filter (where a.name is null and o.id <> all (p_closed)),
           count(a.name), count(*) filter (where a.name = 'approved')
      into v_open, v_answers, v_yes
    from (select distinct (m ->> 'waitpoint')::uuid as id
          from jsonb_array_elements(p_condition -> 'of') m) o
    left join lateral (
      select u.name from unnest(p_keys, p_names) with ordinality u(key, name, n)
      where u.key = 'w ' || o.id and u.name in ('approved', 'rejected')
      order by u.n
      limit 1) a on true;
    return v_yes + v_open >= (p_condition ->> 'approve')::integer
      or v_answers - v_yes + v_open >= (p_condition ->> 'deny')::integer;
  end if;
  return true;
end;
$$;
