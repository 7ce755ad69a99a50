-- Choose the signals that satisfy a condition, and return their ids. Return null if the given
-- signals do not satisfy the condition. The call reads no table.
--
-- Item n of each array belongs to signal n. Signals with lower numbers are chosen first. An item of
-- p_keys says where the signal was sent: `s NAME`, or `w ID` for a waitpoint.
--
-- These conditions exist:
--
-- {"signal": NAME} needs one signal that was sent to the name.
--
-- {"waitpoint": ID} needs one signal that was sent to the waitpoint. If the condition also has a
-- "name", the signal must have this name.
--
-- {"every": CONDITIONS} needs all the conditions. One signal can satisfy several of them.
--
-- {"at_least": N, "of": CONDITIONS} needs N signals, each for one of the conditions. If the
-- condition also has "distinct": "waitpoints", at most one signal for each name or waitpoint
-- counts. If it has "distinct": "sources", at most one signal from each source counts.
--
-- {"approve": N, "deny": M, "of": WAITPOINTS} needs N approvals or M rejections. Only the first
-- answer at each waitpoint counts.
--
-- Signals never satisfy any other condition, for example a condition for an operator.
drop function if exists ff._choose_signals;
create function ff._choose_signals(
  p_condition jsonb,
  p_keys      text[],
  p_names     text[],
  p_ids       uuid[],
  p_sources   text[]
)
returns uuid[]
language plpgsql
immutable
as $$
declare
  v_key    text;
  v_member jsonb;
  v_part   uuid[];
  v_found  uuid[] := '{}';
  v_seen   text[] := '{}';
  v_mark   text;
  v_yes    integer := 0;
begin
  if p_condition ? 'signal' or p_condition ? 'waitpoint' then
    v_key := case when p_condition ? 'signal' then 's ' || (p_condition ->> 'signal')
                  else 'w ' || (p_condition ->> 'waitpoint') end;
    for i in 1..coalesce(cardinality(p_ids), 0) loop
      if p_keys[i] = v_key
         and (not p_condition ? 'name' or p_names[i] = p_condition ->> 'name') then
        return array[p_ids[i]];
      end if;
    end loop;
    return null;
  elsif p_condition ? 'every' then
    for v_member in select m from jsonb_array_elements(p_condition -> 'every') m loop
      v_part := ff._choose_signals(v_member, p_keys, p_names, p_ids, p_sources);
      if v_part is null then
        return null;
      end if;
      v_found := v_found || array(select u from unnest(v_part) u where u <> all (v_found));
    end loop;
    return v_found;
  elsif p_condition ? 'at_least' then
    for i in 1..coalesce(cardinality(p_ids), 0) loop
      continue when not exists (
        select from jsonb_array_elements(p_condition -> 'of') m
        where p_keys[i] = case when m ? 'signal' then 's ' || (m ->> 'signal')
                               else 'w ' || (m ->> 'waitpoint') end
          and (not m ? 'name' or p_names[i] = m ->> 'name')
        offset 0);
      v_mark := case
        when p_condition ->> 'distinct' = 'waitpoints' then p_keys[i]
        when p_condition ->> 'distinct' = 'sources' then coalesce(p_sources[i], '')
        else p_ids[i]::text end;
      continue when v_mark = any (v_seen);
      v_seen := v_seen || v_mark;
      v_found := v_found || p_ids[i];
      if cardinality(v_found) >= (p_condition ->> 'at_least')::integer then
        return v_found;
      end if;
    end loop;
    return null;
  elsif p_condition ? 'approve' then
    v_seen := array(
      select 'w ' || (m ->> 'waitpoint') from jsonb_array_elements(p_condition -> 'of') m);
    for i in 1..coalesce(cardinality(p_ids), 0) loop
      continue when p_keys[i] <> all (v_seen) or p_names[i] not in ('approved', 'rejected');
      v_seen := array_remove(v_seen, p_keys[i]);
      v_found := v_found || p_ids[i];
      v_yes := v_yes + case when p_names[i] = 'approved' then 1 else 0 end;
      if v_yes >= (p_condition ->> 'approve')::integer
         or cardinality(v_found) - v_yes >= (p_condition ->> 'deny')::integer then
        return v_found;
      end if;
    end loop;
    return null;
  end if;
  return null;
end;
$$;
