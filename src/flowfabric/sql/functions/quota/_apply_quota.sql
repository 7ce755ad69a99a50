-- Write the present limits of a quota to its gates in one partition. p_key chooses the gate of one
-- key; null means the gates of all keys. The call locks the gates in id order, and waits for each
-- lock.
--
-- The call also inserts a row with 0 slots into ff.gate_release for each gate. Such a row makes the
-- next claim check the gate again, and open its lines if the gate now has room.
drop function if exists ff._apply_quota;
create function ff._apply_quota(
  p_partition_key smallint,
  p_namespace     text,
  p_quota         text,
  p_key           text,
  p_now           timestamptz
)
returns void
language plpgsql
as $$
declare
  v_partitions constant integer := ff._count_partitions();
  v_gates bigint[] := ff._lock_quota_gates(
    p_partition_key, p_namespace, array[p_quota], p_key);
begin
  update ff.gate g set
    max_running = t.concurrency,
    rate = t.rate,
    wanted_at = null,
    rate_window = t.rate_window,
    is_refusing = t.is_refusing,
    -- If the rate has changed, the next claim looks at the gate at once and computes opens_at
    -- again.
    opens_at = case when g.opens_at is not null
                      and (t.rate, t.rate_window) is distinct from (g.rate, g.rate_window)
                 then least(g.opens_at, p_now) else g.opens_at end,
    -- If the window has changed, a slice covers another span of time: count all earlier starts in
    -- the newest slice.
    slices = case when t.rate is null or g.slices is null then null
                  when g.rate_window = t.rate_window then g.slices
                  else array_fill(0, array[(t.slice % 62)::integer])
                       || array[(select sum(s.n)::integer from unnest(g.slices) s(n))]
                       || array_fill(0, array[61 - (t.slice % 62)::integer]) end,
    slice_base = case when g.rate_window = t.rate_window then g.slice_base
                      else coalesce(t.slice, 0) end
  from (
    select p_partition_key as pk, u.gate_id,
           case when v_partitions = 1 or w.concurrency is null then w.concurrency
                else coalesce(s.concurrency, 0) end as concurrency,
           case when v_partitions = 1 or w.rate is null then w.rate
                else coalesce(s.rate, 0) end as rate,
           w.rate_window, w.is_refusing,
           floor(extract(epoch from p_now) * 60 / extract(epoch from w.rate_window))::bigint as slice
    from unnest(v_gates) u(gate_id)
    cross join lateral (
      select x.key from ff.gate x
      where x.partition_key = p_partition_key and x.gate_id = u.gate_id offset 0) k
    cross join lateral (
      select case when c.key is null then q.concurrency else c.concurrency end as concurrency,
             case when c.key is null then q.rate else c.rate end as rate,
             case when c.key is null then q.rate_window else c.rate_window end as rate_window,
             coalesce(q.overflow = 'refuse', false) as is_refusing
      from (select 1) o
      left join ff.quota q on q.namespace = p_namespace and q.quota = p_quota
      left join lateral (
        select x.key, x.concurrency, x.rate, x.rate_window from ff.quota_change x
        where x.namespace = p_namespace and x.quota = p_quota and x.key in (k.key, '')
        order by x.key desc
        limit 1) c on true) w
    left join ff.gate_share s on s.gate_id = u.gate_id and s.share_no = p_partition_key
    offset 0) t
  where g.partition_key = t.pk and g.gate_id = t.gate_id;
  insert into ff.gate_release (partition_key, gate_id, slots)
  select p_partition_key, u.gate_id, 0 from unnest(v_gates) u(gate_id);
end;
$$;
