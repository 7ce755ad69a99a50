-- Store the limits that an item of ff.register_gates declares for a quota, and write them to the
-- gates of the quota. An item without limits stores nothing. Nothing is stored if the item and the
-- quota disagree about whether the quota has keys.
--
-- Return the field and the text of a problem, or null. The field `name` means that the quota does
-- not exist. The field `key` means that a key is missing, or that the quota has no keys.
drop function if exists ff._declare_quota;
create function ff._declare_quota(
  p_namespace     text,
  p_gate          jsonb,
  p_key           text,
  p_registered_by text,
  p_now           timestamptz
)
returns text[]
language plpgsql
as $$
declare
  v_name     constant text := p_gate ->> 'name';
  v_declares constant boolean :=
    p_gate ?| array['concurrency', 'rate', 'rate_window_ms', 'overflow'];
  -- A declaration without a key may say that its quota has keys.
  v_has_keys constant boolean := coalesce((p_gate ->> 'is_keyed')::boolean, p_key <> '');
  v_is_keyed boolean;
begin
  if v_declares then
    insert into ff.quota as q (
      namespace, quota, is_keyed, concurrency, rate, rate_window, overflow, declared_at, declared_by)
    values (p_namespace, v_name, v_has_keys, (p_gate ->> 'concurrency')::integer,
            (p_gate ->> 'rate')::integer,
            interval '1 millisecond' * (p_gate ->> 'rate_window_ms')::double precision,
            coalesce(p_gate ->> 'overflow', 'queue')::ff.overflow, p_now, p_registered_by)
    on conflict (namespace, quota) do update
      set concurrency = excluded.concurrency, rate = excluded.rate,
          rate_window = excluded.rate_window, overflow = excluded.overflow,
          declared_at = excluded.declared_at, declared_by = excluded.declared_by
      where q.is_keyed = excluded.is_keyed
        and (q.concurrency, q.rate, q.rate_window, q.overflow) is distinct from
            (excluded.concurrency, excluded.rate, excluded.rate_window, excluded.overflow);
    if found then
      perform ff._share_quota(p_namespace, v_name, null, p_now);
      for v_partition in 0..ff._count_partitions() - 1 loop
        perform ff._apply_quota(v_partition::smallint, p_namespace, v_name, null, p_now);
      end loop;
    end if;
  end if;
  select q.is_keyed into v_is_keyed
  from ff.quota q where q.namespace = p_namespace and q.quota = v_name;
  return case
    when v_is_keyed is null then array['name', 'there is no such quota: declare its limits']
    when v_is_keyed and not v_has_keys then array['key', 'is needed: the quota has keys']
    when not v_is_keyed and v_has_keys
      then array['key', 'the quota has no keys: leave the key out'] end;
end;
$$;
