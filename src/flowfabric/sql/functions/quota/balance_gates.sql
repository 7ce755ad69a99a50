-- Move unused shares of limits to the partitions in which executions wait. This is a reconciler. If
-- there is only one partition, the call does nothing.
--
-- For each gate for which executions wait, a call does one of two things. If a part of the limit
-- belongs to no partition, the call gives that part to the partitions in which executions wait.
-- Otherwise the call takes unused shares away from other partitions, and the next call gives them
-- to the partitions in which executions wait. Shares shrink in one transaction and grow in a later
-- one, so all partitions together stay within the limit.
--
-- A login that is bound to a namespace moves only the shares of that namespace.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    for each gate in id order: its quota, skipped if locked; then the gate in every
--           partition, waiting up to 2 s for each
-- Repeat:   a second call continues: it gives away what the first call has taken, or takes more
-- Rights:   app
drop function if exists ff.balance_gates;
create function ff.balance_gates(p_limit integer default 100)
returns table (handled integer, due_in interval)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
#variable_conflict use_column
declare
  v_now        constant timestamptz := ff.now();
  v_partitions constant integer := ff._count_partitions();
  v_bound      constant text := ff._read_bound_namespace();
  v_asked      bigint[];
  v_gate       record;
  v_limits     record;
  v_wanting    smallint[];
begin
  perform ff._check_pass(p_limit);
  handled := 0;
  if v_partitions = 1 then
    return next;
    return;
  end if;
  v_asked := array(
    select distinct w.gate_id
    from ff.partition p
    cross join lateral (
      (select y.gate_id from ff.line y
       where y.partition_key = p.partition_key and y.gate_id < 4611686018427387904
         and not y.is_open
       limit 1000)
      union
      (select g.gate_id from ff.gate g
       where g.partition_key = p.partition_key and g.wanted_at is not null
       limit 1000)) w);
  for v_gate in
    select distinct on (s.gate_id) s.gate_id, s.namespace, s.quota, s.key
    from ff.gate_share s
    where s.gate_id = any (v_asked) and (v_bound is null or s.namespace = v_bound)
    order by s.gate_id
    limit p_limit
  loop
    perform 1 from ff.quota q
    where q.namespace = v_gate.namespace and q.quota = v_gate.quota
    for no key update skip locked;
    continue when not found;
    perform ff._split_gate(
      v_gate.gate_id, v_gate.namespace, v_gate.quota, v_gate.key, v_partitions);
    v_limits := ff._read_limits(v_gate.namespace, v_gate.quota, v_gate.key);
    for v_partition in 0..v_partitions - 1 loop
      perform ff._lock_gates(v_partition::smallint, array[v_gate.gate_id], true);
    end loop;
    v_wanting := array(
      select p.partition_key from ff.partition p
      where exists (
          select 1 from ff.line y
          where y.partition_key = p.partition_key and y.gate_id = v_gate.gate_id
            and case when y.is_open then false else true end offset 0)
        or exists (
          select 1 from ff.gate g
          where g.partition_key = p.partition_key and g.gate_id = v_gate.gate_id
            and case when g.wanted_at is null then false else true end offset 0));
    if ff._grow_shares(
         v_gate.gate_id, v_limits.concurrency, v_limits.rate, v_wanting, v_now) > 0 then
      handled := handled + 1;
    elsif ff._shrink_shares(v_gate.gate_id, v_wanting, v_now) > 0 then
      handled := handled + 1;
      due_in := interval '0';
    end if;
    for v_partition in 0..v_partitions - 1 loop
      perform ff._apply_quota(
        v_partition::smallint, v_gate.namespace, v_gate.quota, v_gate.key, v_now);
    end loop;
  end loop;
  return next;
end;
$$;
