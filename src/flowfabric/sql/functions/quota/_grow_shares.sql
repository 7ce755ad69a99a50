-- Divide the unassigned part of a limit among partitions, and return the size of this part. The
-- unassigned part is the limit minus the shares of all partitions. p_wanting lists the partitions
-- whose shares can grow; null means all partitions. The part is divided evenly, and the smallest
-- shares get the remainder. The caller has locked the quota, and the gate in all partitions.
--
-- A partition whose share was lowered may still run more executions than its share. In that case
-- the number of its running executions is subtracted instead of its share, so that all partitions
-- together stay within the limit.
drop function if exists ff._grow_shares;
create function ff._grow_shares(
  p_gate_id     bigint,
  p_concurrency integer,
  p_rate        integer,
  p_wanting     smallint[],
  p_now         timestamptz
)
returns integer
language plpgsql
as $$
declare
  v_no      smallint;
  v_nos     smallint[] := '{}';
  v_running integer[] := '{}';
  v_started integer[] := '{}';
  v_used    record;
  v_slots   bigint;
  v_starts  bigint;
begin
  for v_no in select s.share_no from ff.gate_share s where s.gate_id = p_gate_id loop
    v_used := ff._read_usage(v_no, p_gate_id, p_now);
    v_nos := v_nos || v_no;
    v_running := v_running || v_used.counted;
    v_started := v_started || v_used.started;
  end loop;
  select p_concurrency - sum(greatest(s.concurrency, u.running)),
         p_rate - sum(greatest(s.rate, u.started))
    into v_slots, v_starts
  from ff.gate_share s
  join unnest(v_nos, v_running, v_started) u(no, running, started) on u.no = s.share_no
  where s.gate_id = p_gate_id;
  v_slots := greatest(coalesce(v_slots, 0), 0);
  v_starts := greatest(coalesce(v_starts, 0), 0);
  if v_slots + v_starts = 0 then
    return 0;
  end if;
  update ff.gate_share s set
    concurrency = s.concurrency
      + (v_slots / t.targets + (t.slot_nth <= v_slots % t.targets)::integer)::integer,
    rate = s.rate
      + (v_starts / t.targets + (t.start_nth <= v_starts % t.targets)::integer)::integer
  from (
    select w.share_no, count(*) over () as targets,
           row_number() over (order by w.concurrency, w.share_no) as slot_nth,
           row_number() over (order by w.rate, w.share_no) as start_nth
    from ff.gate_share w
    where w.gate_id = p_gate_id and (p_wanting is null or w.share_no = any (p_wanting))) t
  where s.gate_id = p_gate_id and s.share_no = t.share_no;
  return (v_slots + v_starts)::integer;
end;
$$;
