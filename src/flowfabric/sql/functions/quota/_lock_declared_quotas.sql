-- Lock the existing quotas whose limits a call of ff.register_gates changes, and then the gates of
-- all these quotas. If the call changes fewer than two quotas, lock nothing: ff._declare_quota
-- takes the locks of a single quota in the right order.
--
-- A claim locks its gates in id order, so this call locks gates in id order, too. If this call
-- locked the gates of one quota after another, a claim and this call could wait for each other.
--
-- Locks: quotas in name order, then gates by partition and id; waits for each
drop function if exists ff._lock_declared_quotas;
create function ff._lock_declared_quotas(p_namespace text, p_gates jsonb)
returns void
language plpgsql
as $$
declare
  v_quotas text[];
begin
  -- Invalid items are refused later.
  v_quotas := array(
    select q.quota
    from ff.quota q
    where q.namespace = p_namespace and exists (
      select from jsonb_array_elements(p_gates) u(gate)
      where u.gate ->> 'kind' = 'quota' and u.gate ->> 'name' = q.quota
        and u.gate ?| array['concurrency', 'rate', 'rate_window_ms', 'overflow']
        and (u.gate ->> 'concurrency', u.gate ->> 'rate', coalesce(u.gate ->> 'overflow', 'queue'),
             u.gate ->> 'rate_window_ms')
            is distinct from
            (q.concurrency::text, q.rate::text, q.overflow::text,
             (extract(epoch from q.rate_window) * 1000)::bigint::text)));
  if cardinality(v_quotas) < 2 then
    return;
  end if;
  perform 1 from ff.quota q
  where q.namespace = p_namespace and q.quota = any (v_quotas)
  order by q.quota
  for no key update;
  for v_partition in 0..ff._count_partitions() - 1 loop
    perform ff._lock_quota_gates(v_partition::smallint, p_namespace, v_quotas, null);
  end loop;
end;
$$;
