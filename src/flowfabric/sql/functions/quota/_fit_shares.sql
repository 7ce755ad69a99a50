-- Lower the unused shares of a limit, to make up for partitions that use more than their shares.
-- The caller has locked the quota, and the gate in all partitions.
--
-- After a limit was lowered, a partition may still run more executions than its share. Without this
-- call, other partitions could start executions although all partitions together already run more
-- than the limit allows.
drop function if exists ff._fit_shares;
create function ff._fit_shares(
  p_gate_id     bigint,
  p_concurrency integer,
  p_rate        integer,
  p_now         timestamptz
)
returns void
language plpgsql
as $$
declare
  v_no      smallint;
  v_nos     smallint[] := '{}';
  v_running integer[] := '{}';
  v_started integer[] := '{}';
  v_used    record;
begin
  for v_no in select s.share_no from ff.gate_share s where s.gate_id = p_gate_id loop
    v_used := ff._read_usage(v_no, p_gate_id, p_now);
    v_nos := v_nos || v_no;
    v_running := v_running || v_used.counted;
    v_started := v_started || v_used.started;
  end loop;
  update ff.gate_share s set
    concurrency = s.concurrency - least(t.slots, greatest(t.slots_over - t.slots_before, 0))::integer,
    rate = s.rate - least(t.starts, greatest(t.starts_over - t.starts_before, 0))::integer
  from (
    -- Compute for each partition its unused share, the unused shares of the partitions before it,
    -- and by how much all partitions together exceed the limit.
    select x.share_no, x.slots, x.starts,
           sum(x.slots) over w - x.slots as slots_before,
           sum(x.starts) over w - x.starts as starts_before,
           sum(x.slots_taken) over () - p_concurrency as slots_over,
           sum(x.starts_taken) over () - p_rate as starts_over
    from (
      select y.share_no, greatest(y.concurrency - u.running, 0) as slots,
             greatest(y.rate - u.started, 0) as starts,
             greatest(y.concurrency, u.running) as slots_taken,
             greatest(y.rate, u.started) as starts_taken
      from ff.gate_share y
      join unnest(v_nos, v_running, v_started) u(no, running, started) on u.no = y.share_no
      where y.gate_id = p_gate_id) x
    window w as (order by x.share_no)) t
  where s.gate_id = p_gate_id and s.share_no = t.share_no
    and (t.slots_over > 0 or t.starts_over > 0);
end;
$$;
