-- Take unused shares of a limit away from partitions. Return a positive number if something was
-- taken, otherwise 0. The caller has locked the quota, and the gate in all partitions.
--
-- p_wanting are the partitions in which executions wait. Every other partition loses half of its
-- unused share, rounded up. If the other partitions have no unused share, the shares in p_wanting
-- are made more equal. Each of the largest shares then loses one slot or one start, if it is larger
-- than the smallest by two or more.
drop function if exists ff._shrink_shares;
create function ff._shrink_shares(p_gate_id bigint, p_wanting smallint[], p_now timestamptz)
returns integer
language plpgsql
as $$
declare
  v_no      smallint;
  v_nos     smallint[] := '{}';
  v_running integer[] := '{}';
  v_started integer[] := '{}';
  v_used    record;
  v_taken   integer;
begin
  for v_no in select s.share_no from ff.gate_share s where s.gate_id = p_gate_id loop
    v_used := ff._read_usage(v_no, p_gate_id, p_now);
    v_nos := v_nos || v_no;
    v_running := v_running || v_used.running;
    v_started := v_started || v_used.started;
  end loop;
  with unused as (
    select s.share_no, greatest(s.concurrency - u.running, 0) as slots,
           greatest(s.rate - u.started, 0) as starts
    from ff.gate_share s
    join unnest(v_nos, v_running, v_started) u(no, running, started) on u.no = s.share_no
    where s.gate_id = p_gate_id and s.share_no <> all (p_wanting)
  ),
  shrunk as (
    update ff.gate_share s set
      concurrency = s.concurrency - ((u.slots + 1) / 2)::integer,
      rate = s.rate - ((u.starts + 1) / 2)::integer
    from unused u
    where s.gate_id = p_gate_id and s.share_no = u.share_no
      and coalesce(u.slots, 0) + coalesce(u.starts, 0) > 0
    returning coalesce(u.slots, 0) + coalesce(u.starts, 0) as n
  )
  select coalesce(sum(s.n), 0)::integer into v_taken from shrunk s;
  if v_taken > 0 then
    return v_taken;
  end if;
  update ff.gate_share s set
    concurrency = s.concurrency - (t.most_slots - t.least_slots >= 2
                                   and s.concurrency = t.most_slots)::integer,
    rate = s.rate - (t.most_starts - t.least_starts >= 2 and s.rate = t.most_starts)::integer
  from (
    select max(w.concurrency) as most_slots, min(w.concurrency) as least_slots,
           max(w.rate) as most_starts, min(w.rate) as least_starts
    from ff.gate_share w
    where w.gate_id = p_gate_id and w.share_no = any (p_wanting)) t
  where s.gate_id = p_gate_id and s.share_no = any (p_wanting)
    and (t.most_slots - t.least_slots >= 2 and s.concurrency = t.most_slots
         or t.most_starts - t.least_starts >= 2 and s.rate = t.most_starts);
  get diagnostics v_taken = row_count;
  return v_taken;
end;
$$;
