-- Register the gates of quotas and budgets, so that submits can name them.
--
-- p_gates is a JSON array with one object per item. Every object has kind (quota or budget), name,
-- and key (text; left out for a quota or budget without keys).
--
-- An item can declare its quota or budget. The declaration of a quota has concurrency, rate,
-- rate_window_ms and overflow. If an item has is_keyed but no key, it declares a quota with keys
-- and registers no gate. The declaration of a budget has limits (an object that maps a dimension to
-- {hard, soft}), on_exceed, and either period (hour, day, week, month) with zone, or period_ms.
--
-- An item without a declaration must name an existing quota or budget. A declaration creates the
-- quota or budget, or replaces its declared limits. It never changes limits that an operator set.
-- The id of a gate is a hash of its kind, namespace, name and key, so the same item always gets the
-- same id.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input · WF402 route_collision (another gate has the same id) · per item:
--           invalid (field, problem) · quota_not_found · budget_not_found
-- Locks:    if two or more declared quotas change, first these quotas in name order, then their
--           gates in id order. Then, item by item in the order of kind, name and key, each quota
--           or budget that changes or gets a new gate. Waits up to 2 s for each lock
-- Repeat:   the same answers; nothing changes
-- Rights:   app
drop function if exists ff.register_gates;
create function ff.register_gates(
  p_partition_key smallint,
  p_namespace     text,
  p_gates         jsonb,
  p_registered_by text default null
)
returns table (item integer, gate_id bigint, outcome text, detail jsonb)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now     constant timestamptz := ff.now();
  v_asked   record;
  v_problem text[];
  v_key     text;
  v_found   boolean;
begin
  perform ff._check_namespace(p_namespace);
  perform ff._check_partition(p_partition_key);
  perform ff._check_actor_and_reason(p_registered_by, null);
  if jsonb_typeof(p_gates) is distinct from 'array' or jsonb_array_length(p_gates) > 10000 then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'gates', 'problem', 'must be an array of at most 10000 objects'));
  end if;
  perform ff._lock_declared_quotas(p_namespace, p_gates);
  -- All calls go through their items in the same order, so that two calls never wait for each
  -- other.
  for v_asked in
    select u.gate, u.n::integer as n
    from jsonb_array_elements(p_gates) with ordinality u(gate, n)
    order by u.gate ->> 'kind', u.gate ->> 'name', u.gate ->> 'key', u.n
  loop
    item := v_asked.n;
    gate_id := null;
    outcome := 'registered';
    detail := null;
    v_key := coalesce(v_asked.gate ->> 'key', '');
    v_problem := coalesce(
      ff._gate_problem(v_asked.gate),
      ff._gate_name_problem('name', p_namespace, v_asked.gate ->> 'name', v_key));
    if v_problem is not null then
      outcome := 'invalid';
      detail := jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]);
      return next;
      continue;
    end if;
    gate_id := ff._hash_gate(v_asked.gate ->> 'kind' = 'budget', p_namespace,
                             v_asked.gate ->> 'name', v_key);
    if v_asked.gate ->> 'kind' = 'budget' then
      v_found := ff._declare_budget(p_namespace, gate_id, v_asked.gate, v_key, p_registered_by,
                                    v_now);
      if not v_found then
        outcome := 'budget_not_found';
        detail := jsonb_build_object('budget', v_asked.gate ->> 'name', 'key', v_key);
      end if;
    else
      v_problem := ff._declare_quota(p_namespace, v_asked.gate, v_key, p_registered_by, v_now);
      if v_problem[1] = 'name' then
        outcome := 'quota_not_found';
        detail := jsonb_build_object('quota', v_asked.gate ->> 'name');
      elsif v_problem is not null then
        outcome := 'invalid';
        detail := jsonb_build_object('field', v_problem[1], 'problem', v_problem[2]);
      elsif v_key = '' and (v_asked.gate ->> 'is_keyed')::boolean then
        gate_id := null;
      else
        perform ff._make_gate(p_partition_key, gate_id, p_namespace, v_asked.gate ->> 'name', v_key);
      end if;
    end if;
    if outcome <> 'registered' then
      gate_id := null;
    end if;
    return next;
  end loop;
end;
$$;
