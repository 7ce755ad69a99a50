-- Apply the limit in the options of a lane, if it has changed. Returns the id of the gate that
-- counts the executions of the lane, or null if the lane has no limit. The caller has locked the
-- lane.
--
-- The limit of a lane is stored as the limit of one key of the quota `ff:lane`, which no app can
-- declare. Claims add the gate of this key to the executions of the lane (ff._join_lane_gates).
drop function if exists ff._limit_lane;
create function ff._limit_lane(
  p_namespace text,
  p_lane      text,
  p_gate_id   bigint,
  p_old       jsonb,
  p_new       jsonb,
  p_actor     text,
  p_now       timestamptz
)
returns bigint
language plpgsql
as $$
declare
  v_numbers  constant text[] := array['concurrency', 'rate', 'rate_window_ms'];
  v_gate     constant bigint := ff._hash_gate(false, p_namespace, 'ff:lane', p_lane);
  v_limited  constant boolean := p_new ?| v_numbers;
begin
  if p_gate_id is null and not v_limited then
    return null;
  end if;
  if (p_gate_id is not null) = v_limited
     and not exists (select from unnest(v_numbers) f(field)
                     where p_old -> f.field is distinct from p_new -> f.field) then
    return p_gate_id;
  end if;
  insert into ff.quota (namespace, quota, is_keyed, declared_at)
  values (p_namespace, 'ff:lane', true, p_now)
  on conflict do nothing;
  perform ff._lock_quota(p_namespace, 'ff:lane', p_lane);
  if v_limited then
    insert into ff.quota_change as c (
      namespace, quota, key, concurrency, rate, rate_window, changed_by, changed_at)
    values (p_namespace, 'ff:lane', p_lane, (p_new ->> 'concurrency')::integer,
            (p_new ->> 'rate')::integer,
            interval '1 millisecond' * (p_new ->> 'rate_window_ms')::double precision, p_actor, p_now)
    on conflict (namespace, quota, key) do update
      set concurrency = excluded.concurrency, rate = excluded.rate,
          rate_window = excluded.rate_window, changed_by = excluded.changed_by,
          changed_at = greatest(excluded.changed_at, c.changed_at);
  else
    delete from ff.quota_change c
    where c.namespace = p_namespace and c.quota = 'ff:lane' and c.key = p_lane;
  end if;
  for v_partition in 0..ff._count_partitions() - 1 loop
    perform ff._make_gate(v_partition::smallint, v_gate, p_namespace, 'ff:lane', p_lane);
  end loop;
  perform ff._share_quota(p_namespace, 'ff:lane', p_lane, p_now);
  for v_partition in 0..ff._count_partitions() - 1 loop
    perform ff._apply_quota(v_partition::smallint, p_namespace, 'ff:lane', p_lane, p_now);
  end loop;
  return case when v_limited then v_gate end;
end;
$$;
