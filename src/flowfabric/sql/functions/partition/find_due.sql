-- Find the partitions in which something is due now or later, with the time until it is due.
-- Reconcilers call only these partitions.
--
-- Each of p_kinds names one kind of work:
-- `timer`: executions with a delay, a lease, a deadline or an attempt timeout.
-- `wake`: ends to propagate.
-- `flow_cancel`: members to cancel, because their flow is cancelled.
-- `sibling`: siblings to cancel, because their group is decided.
-- `route`: executions that are blocked because no capable worker is alive.
-- `gate`: gates, lines and tickets to bring up to date.
-- `signal`: signals to notice.
-- `suspension`: suspensions that time out.
-- `waitpoint`: waitpoints to expire.
-- `stream`: streams to expire.
-- `grant`: grants to reap.
-- `event`: events to trim.
-- `minute`: events to count.
--
-- If a partition has no row of a kind, it has nothing of that kind to do, now or later. due_in is
-- zero or less if something is due now.
--
-- Moves:    nothing
-- Refuses:  WF001 invalid_input
-- Locks:    none
-- Repeat:   a read
-- Rights:   app
drop function if exists ff.find_due;
create function ff.find_due(p_kinds text[])
returns table (kind text, partition_key smallint, due_in interval)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_now constant timestamptz := ff.now();
begin
  if p_kinds is null or not p_kinds <@ array[
       'timer', 'wake', 'flow_cancel', 'sibling', 'route', 'gate', 'signal', 'suspension',
       'waitpoint', 'stream', 'grant', 'event', 'minute'] then
    perform ff._refuse('WF001', 'invalid_input', jsonb_build_object(
      'field', 'kinds', 'problem',
      'each must be timer, wake, flow_cancel, sibling, route, gate, signal, suspension, waitpoint, '
      'stream, grant, event or minute'));
  end if;
  if 'timer' = any (p_kinds) then
    return query
    select 'timer', p.partition_key, d.due_at - v_now
    from ff.partition p
    cross join lateral (
      select e.due_at from ff.execution e
      where e.partition_key = p.partition_key and e.due_at is not null
      order by e.due_at limit 1) d;
  end if;
  if 'wake' = any (p_kinds) then
    return query
    select 'wake', p.partition_key, interval '0'
    from ff.partition p
    cross join lateral (
      select from ff.execution e
      where e.partition_key = p.partition_key and e.wakes_pending
      limit 1) d;
  end if;
  if 'flow_cancel' = any (p_kinds) then
    return query
    select 'flow_cancel', p.partition_key, d.due_at - v_now
    from ff.partition p
    cross join lateral (
      select b.due_at from ff.cancel_backlog b
      where b.partition_key = p.partition_key
      order by b.due_at limit 1) d;
  end if;
  if 'sibling' = any (p_kinds) then
    return query
    select 'sibling', p.partition_key, interval '0'
    from ff.partition p
    cross join lateral (
      select from ff.edge_group y
      where y.partition_key = p.partition_key and y.cancel_pending
      limit 1) d;
  end if;
  if 'route' = any (p_kinds) then
    return query
    select 'route', p.partition_key, interval '0'
    from ff.partition p
    cross join lateral (
      select from ff.execution e
      where e.partition_key = p.partition_key and e.eligibility = 'blocked_by_route'
      limit 1) d;
  end if;
  if 'gate' = any (p_kinds) then
    return query
    select 'gate', p.partition_key, min(d.due_in)
    from ff.partition p
    cross join lateral (
      (select interval '0' as due_in from ff.gate_release r
       where r.partition_key = p.partition_key limit 1)
      union all
      (select interval '0' from ff.line y where y.partition_key = p.partition_key limit 1)
      union all
      (select k.expires_at - v_now from ff.gate_ticket k
       where k.partition_key = p.partition_key
       order by k.expires_at limit 1)
      union all
      (select g.opens_at - v_now from ff.gate g
       where g.partition_key = p.partition_key and g.opens_at is not null
       order by g.opens_at limit 1)) d
    group by p.partition_key;
  end if;
  if 'signal' = any (p_kinds) then
    return query
    select 'signal', p.partition_key, interval '0'
    from ff.partition p
    cross join lateral (
      select from ff.signal_inbox b
      where b.partition_key = p.partition_key
      limit 1) d;
  end if;
  if 'suspension' = any (p_kinds) then
    return query
    select 'suspension', p.partition_key, d.timeout_at - v_now
    from ff.partition p
    cross join lateral (
      select s.timeout_at from ff.suspension s
      where s.partition_key = p.partition_key and s.closed_at is null
        and s.timeout_at is not null
      order by s.timeout_at limit 1) d;
  end if;
  if 'waitpoint' = any (p_kinds) then
    return query
    select 'waitpoint', p.partition_key, d.expires_at - v_now
    from ff.partition p
    cross join lateral (
      select w.expires_at from ff.waitpoint w
      where w.partition_key = p.partition_key and w.closed_at is null
        and w.activated_at is null and w.expires_at is not null
      order by w.expires_at limit 1) d;
  end if;
  if 'stream' = any (p_kinds) then
    return query
    select 'stream', p.partition_key, d.expires_at - v_now
    from ff.partition p
    cross join lateral (
      select s.expires_at from ff.stream s
      where s.partition_key = p.partition_key and s.expires_at is not null
      order by s.expires_at limit 1) d;
  end if;
  if 'grant' = any (p_kinds) then
    return query
    select 'grant', p.partition_key, d.expires_at - v_now
    from ff.partition p
    cross join lateral (
      select g.expires_at from ff.grant g
      where g.partition_key = p.partition_key and g.expires_at > '-infinity'
      order by g.expires_at limit 1) d;
  end if;
  if 'event' = any (p_kinds) then
    return query
    select 'event', p.partition_key, d.due_at - v_now
    from ff.partition p
    cross join lateral (
      select t.due_at from ff.event_trim t
      where t.partition_key = p.partition_key
      order by t.due_at limit 1) d;
  end if;
  if 'minute' = any (p_kinds) then
    return query
    select 'minute', q.partition_key, case
        when q.is_due then interval '0'
        -- Minutes are added to the sums even if no new events come.
        else greatest(q.summed_at, v_now - interval '1 day') + interval '20 minutes' - v_now end
    from (
      select p.partition_key, m.cursor_text, m.summed_at,
        -- If the position names a transaction that was unfinished at the last count, its events may
        -- have to be counted now.
        coalesce(split_part(m.cursor_text, ':', 8) <> '', false) or d.is_new is not null as is_due
      from ff.partition p
      left join ff.minute_position m on m.partition_key = p.partition_key
      left join lateral (
        select true as is_new from ff.event e
        where e.partition_key = p.partition_key
          and (e.generation, e.xid) > (coalesce(split_part(m.cursor_text, ':', 6), '0')::integer,
                                       coalesce(split_part(m.cursor_text, ':', 7), '0')::xid8)
        limit 1) d on true) q
    where q.is_due or q.cursor_text is not null;
  end if;
end;
$$;
